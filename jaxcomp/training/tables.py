"""The tables of a run: columns of steps and epochs."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxcomp.core.units import times_fewer
from jaxcomp.runs import loggers
from jaxcomp.runs.open_run import Frame
from jaxcomp.runs.table import EPOCHS, LAYERS, STEPS, Append, open_table, read_rows
from jaxcomp.training.evaluation import OwnScores, Scores
from jaxcomp.training.progress import Position
from jaxcomp.training.setup import Setup
from jaxcomp.training.tasks import Measure
from jaxcomp.training.traffic import Traffic


def epoch_row(
    done: int,
    position: Position,
    setup: Setup,
    traffic: Traffic,
    distance: float | None,
) -> dict[str, Any]:
    """All columns of metrics.csv but those of an evaluation.

    Args:
      done: steps of the run so far.
      position: with the sums of the epoch.
      setup: of the run.
      traffic: of the last step.
      distance: of the workers' models from their mean; None for one common model.
    """
    figures, measure = position.totals.figures(), setup.task.measure
    loss, accuracy = figures.get("train_loss"), figures.get("train_accuracy")
    left = {"bytes_left": position.left, "exact_bytes_left": position.exact}
    left["times_fewer"] = times_fewer(position.exact, position.left)
    value = None
    if loss is not None and accuracy is not None:
        value = measure.of(loss, accuracy)
    return {
        "epoch": setup.calendar.epoch_at(done - 1),
        "step": done,
        "examples": setup.calendar.examples(done),
        "seconds": position.seconds,
        "learning_rate": setup.rate_on_host(done - 1),
        "wire_bytes_per_step": position.totals.bytes_per_step(),
        "dense_bytes_per_step": traffic.dense,
        **{name: nbytes for name, nbytes in left.items() if not math.isnan(nbytes)},
        "simulated": int(traffic.simulated or traffic.stand_in),
        "traced": int(position.totals.traced > 0),
        "consensus_distance": distance,
        "residual_grows": int(position.growth.grows),
        **figures,
        f"train_{measure.name}": value,
    }


def score_columns(
    scores: Scores | None, own: OwnScores | None, measure: Measure
) -> dict[str, float | None]:
    """The columns of an evaluation, empty where there was none.

    Example:
      >>> from jaxcomp.training.tasks import PERPLEXITY
      >>> row = score_columns(Scores(0.0, 0.9), None, PERPLEXITY)
      >>> row["test_accuracy"], row["test_perplexity"]
      (0.9, 1.0)
    """
    _, test, own_mean, own_worst = measured(measure)
    return {
        "test_loss": scores and scores.loss,
        "test_accuracy": scores and scores.accuracy,
        test: scores and measure.of(*scores[:2]),
        own_mean: own and own.mean,
        own_worst: own and own.worst,
        **{f"test_{name}": x for name, x in (scores.figures if scores else {}).items()},
    }


def ema_columns(scores: Scores | None, measure: Measure) -> dict[str, float]:
    """The columns of the averaged weights; none where there are none.

    Example:
      >>> from jaxcomp.training.tasks import PERPLEXITY
      >>> ema_columns(Scores(0.0, 0.9), PERPLEXITY)
      {'ema_loss': 0.0, 'ema_perplexity': 1.0}
    """
    if scores is None:
        return {}
    figures = {f"ema_{name}": value for name, value in scores.figures.items()}
    value = measure.of(*scores[:2])
    return {"ema_loss": scores.loss, f"ema_{measure.name}": value, **figures}


def measured(measure: Measure) -> tuple[str, ...]:
    """The columns of metrics.csv that hold the task's measure.

    Example:
      >>> from jaxcomp.training.tasks import PERPLEXITY
      >>> measured(PERPLEXITY)[:2]
      ('train_perplexity', 'test_perplexity')
    """
    return tuple(f"{part}_{measure.name}" for part in ("train", "test", "own", "worst"))


def epoch_line(row: dict[str, Any], epochs: int, measure: Measure) -> str:
    """One line of the console for an epoch."""
    trained, tested, averaged = (
        _scored(row.get(f"{part}_loss"), row.get(f"{part}_{measure.name}"), measure)
        for part in ("train", "test", "ema")
    )
    test = f"  test {tested}" if tested else ""
    for name in row:
        if name.startswith("test_top"):
            test += f"  top {name.removeprefix('test_top')} {row[name]:.2%}"
    test += f"  ema {averaged}" if averaged else ""
    left_out, skipped = row.get("overflow"), row.get("skipped_steps")
    room = f"  overflow {left_out:,.0f} a step" if left_out else ""
    bad = f"  {skipped:,.4g} steps skipped" if skipped else ""
    scaled = row.get("overflowed_steps")
    bad += f"  {scaled:,.4g} steps overflowed" if scaled else ""
    return (
        f"epoch {row['epoch']:>3}/{epochs}  train {trained or '– –'}{test}  "
        f"lr {row['learning_rate']:.4f}  {row['seconds']:.1f} s{room}{bad}"
    )


def _scored(loss: float | None, value: float | None, measure: Measure) -> str:
    """A loss and what is measured; "" where neither is known."""
    if loss is None or value is None:
        return ""
    return f"{loss:.4f} {measure.text(value):>7}"


class Tables(NamedTuple):
    """Where the rows of a run go; all processes but the first drop them."""

    epochs: Append
    steps: Append
    layers: Append


@contextlib.contextmanager
def open_tables(
    frame: Frame, start: int, setup: Setup, config: Mapping[str, Any]
) -> Iterator[Tables]:
    """The tables without the rows after the step a run goes on from, and the loggers.

    Args:
      frame: of the run.
      start: that step.
      setup: of the run.
      config: of the run, plain values, for loggers.
    """
    if not frame.writes:
        yield Tables(_dropped, _dropped, _dropped)
        return

    def is_done(row: dict[str, int]) -> bool:
        return row["step"] <= start

    def is_epoch_done(row: dict[str, int]) -> bool:
        return setup.calendar.end_of(row["epoch"]) <= start

    # What the exchange and the task report are further columns.
    of_epoch = columns_of(setup, config)
    epochs = open_table(frame.folder / "metrics.csv", EPOCHS, is_done, of_epoch)
    of_step = (*setup.figures, setup.task.measure.name)
    steps = open_table(frame.folder / "steps.csv", STEPS, is_done, of_step)
    layers_path = frame.folder / "layers.csv"
    if layers_path.exists() or config["layers_every"]:
        layers = open_table(layers_path, LAYERS, is_epoch_done)
    else:
        layers = _dropped
    run = loggers.RunSoFar(
        frame.folder,
        config,
        start,
        read_rows(frame.folder / "metrics.csv"),
        read_rows(frame.folder / "steps.csv"),
    )
    ended = setup.calendar.end_of(setup.calendar.epoch_at(start) - 1)
    looked = start - start % config["log_every"]
    for name, rows, done in (
        ("metrics", run.epochs, ended),
        ("steps", run.steps, looked),
    ):
        last = max((int(float(row["step"])) for row in rows), default=0)
        if last < done:
            lost = f"{name}.csv lacks the rows of steps {last + 1} to {done}"
            frame.show.say(f"WARNING: {lost}, which are lost")
    logger = loggers.opened(setup.loggers, run, frame.show.say)

    def epoch(row: dict[str, Any]) -> None:
        epochs(row)
        logger.epoch(row)

    def step(row: dict[str, Any]) -> None:
        steps(row)
        logger.step(row)

    try:
        yield Tables(epoch, step, layers)
    finally:
        logger.close()


def columns_of(setup: Setup, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of metrics.csv."""
    measure = setup.task.measure
    none = Scores(0.0, 0.0, dict.fromkeys(setup.task.scored, 0.0))
    averaged = ema_columns(none, measure) if config["ema"] else ()
    scored = (f"test_{name}" for name in setup.task.scored)
    return (*EPOCHS.columns, *measured(measure), *scored, *averaged)


def _dropped(row: dict[str, Any]) -> None:
    """Write nothing."""

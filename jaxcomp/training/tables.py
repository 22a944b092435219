"""The tables of a run: its columns, and the rows of steps and of epochs."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.output import mark_progress
from jaxcomp.core.units import times_fewer
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.runs import loggers
from jaxcomp.runs.open_run import Frame
from jaxcomp.runs.table import EPOCHS, LAYERS, STEPS, Append, open_table, read_rows
from jaxcomp.training import running_metrics as running
from jaxcomp.training.checkpoints import Progress
from jaxcomp.training.plan import RunPlan, is_due
from jaxcomp.training.programs import Traffic
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.tasks import Measure


def epoch_row(
    done: int,
    progress: Progress,
    plan: RunPlan,
    traffic: Traffic,
    distance: float | None,
) -> dict[str, Any]:
    """All columns of metrics.csv but those of an evaluation.

    Args:
      done: steps of the run so far.
      progress: with the sums of the epoch.
      plan: of the run.
      traffic: of the last step.
      distance: of the workers' models from their mean; None for one common model.
    """
    figures, measure = progress.totals.figures(), plan.measure
    loss, accuracy = figures.get("train_loss"), figures.get("train_accuracy")
    left = {"bytes_left": progress.left, "exact_bytes_left": progress.exact}
    left["times_fewer"] = times_fewer(progress.exact, progress.left)
    value = None
    if loss is not None and accuracy is not None:
        value = measure.of(loss, accuracy)
    return {
        "epoch": plan.segments.epoch_at(done - 1),
        "step": done,
        "examples": plan.segments.examples(done),
        "seconds": progress.seconds,
        "learning_rate": plan.rate_on_host(done - 1),
        "wire_bytes_per_step": progress.totals.bytes_per_step(),
        "dense_bytes_per_step": traffic.dense,
        **{name: nbytes for name, nbytes in left.items() if not math.isnan(nbytes)},
        "simulated": int(traffic.simulated or traffic.stand_in),
        "traced": int(progress.totals.traced > 0),
        "consensus_distance": distance,
        **figures,
        f"train_{measure.name}": value,
    }


def score_columns(
    scores: running.Scores | None, own: running.OwnScores | None, measure: Measure
) -> dict[str, float | None]:
    """The columns of an evaluation, empty where there was none.

    Example:
      >>> from jaxcomp.training.tasks import PERPLEXITY
      >>> row = score_columns(running.Scores(0.0, 0.9), None, PERPLEXITY)
      >>> row["test_accuracy"], row["test_perplexity"]
      (0.9, 1.0)
    """
    return {
        "test_loss": scores and scores.loss,
        "test_accuracy": scores and scores.accuracy,
        f"test_{measure.name}": scores and measure.of(*scores[:2]),
        f"own_{measure.name}": own and own.mean,
        f"worst_{measure.name}": own and own.worst,
        **{f"test_{name}": x for name, x in (scores.figures if scores else {}).items()},
    }


def ema_columns(scores: running.Scores | None, measure: Measure) -> dict[str, float]:
    """The columns of the averaged weights; none where there are none.

    Example:
      >>> from jaxcomp.training.tasks import PERPLEXITY
      >>> ema_columns(running.Scores(0.0, 0.9), PERPLEXITY)
      {'ema_loss': 0.0, 'ema_perplexity': 1.0}
    """
    if scores is None:
        return {}
    figures = {f"ema_{name}": value for name, value in scores.figures.items()}
    value = measure.of(*scores[:2])
    return {"ema_loss": scores.loss, f"ema_{measure.name}": value, **figures}


def epoch_line(row: dict[str, Any], epochs: int, measure: Measure) -> str:
    """One line of the console for an epoch."""
    said = [f"epoch {row['epoch']:>3}/{epochs}"]
    for part in ("train", "test", "ema"):
        loss, value = row.get(f"{part}_loss"), row.get(f"{part}_{measure.name}")
        if loss is not None and value is not None:
            said.append(f"{part} {loss:.4f} {measure.text(value):>7}")
    said += [f"lr {row['learning_rate']:.4f}", f"{row['seconds']:.1f} s"]
    for name, words in _LEFT_OUT.items():
        said += [words.format(row[name])] if row.get(name) else []
    return "  ".join(said)


_LEFT_OUT = {
    "overflow": "overflow {:,.0f} a step",
    "skipped_steps": "{:,.4g} steps skipped",
    "overflowed_steps": "{:,.4g} steps overflowed",
}


class Tables(NamedTuple):
    """Where the rows of a run go; all processes but the first drop them."""

    epochs: Append
    steps: Append
    layers: Append


@contextlib.contextmanager
def open_tables(plan: RunPlan, frame: Frame, start: int) -> Iterator[Tables]:
    """The tables without the rows after the step a run goes on from, and the loggers.

    Args:
      plan: of the run.
      frame: of the run.
      start: that step.
    """
    config, dropped = plan.as_written, lambda row: None
    if not frame.writes:
        yield Tables(*3 * [dropped])
        return

    def is_done(row: dict[str, int]) -> bool:
        return row["step"] <= start

    def is_epoch_done(row: dict[str, int]) -> bool:
        return plan.segments.end_of(row["epoch"]) <= start

    # What the exchange and the task report are further columns.
    of_epoch = columns_of(plan, config)
    epochs = open_table(frame.folder / "metrics.csv", EPOCHS, is_done, of_epoch)
    of_step = (*plan.figures, plan.measure.name)
    steps = open_table(frame.folder / "steps.csv", STEPS, is_done, of_step)
    layers_path = frame.folder / "layers.csv"
    if layers_path.exists() or config["layers_every"]:
        layers = open_table(layers_path, LAYERS, is_epoch_done)
    else:
        layers = dropped
    rows = [read_rows(frame.folder / f"{name}.csv") for name in ("metrics", "steps")]
    ended = plan.segments.end_of(plan.segments.epoch_at(start) - 1)
    looked = start - start % config["log_every"]
    for name, found, done in zip(
        ("metrics", "steps"), rows, (ended, looked), strict=True
    ):
        last = max((int(float(row["step"])) for row in found), default=0)
        if last < done:
            lost = f"{name}.csv lacks the rows of steps {last + 1} to {done}"
            frame.show.say(f"WARNING: {lost}, which are lost")
    run = loggers.RunSoFar(frame.folder, config, start, *rows)
    logger = loggers.opened(plan.loggers, run, frame.show.say)

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


def columns_of(plan: RunPlan, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of metrics.csv."""
    measure = plan.measure
    none = running.Scores(0.0, 0.0, dict.fromkeys(plan.task.scored, 0.0))
    averaged = ema_columns(none, measure) if plan.average else ()
    judged = (f"{part}_{measure.name}" for part in ("train", "test", "own", "worst"))
    scored = (f"test_{name}" for name in plan.task.scored)
    return (*EPOCHS.columns, *judged, *scored, *averaged)


def log_steps(
    plan: RunPlan,
    frame: Frame,
    tables: Tables,
    done: int,
    taken: list[StepMetrics],
    timing: running.Timing,
    progress: Progress,
) -> Progress:
    """Add steps to the sums, log those that are due, and stop at a failed one.

    All processes call it at the same place, and a failed step ends all of them.

    Args:
      plan: of the run.
      frame: of the run.
      tables: of the run.
      done: steps of the run so far.
      taken: the figures of the last of them, NumPy arrays.
      timing: of each of these, the mean.
      progress: before them.
    """
    first, config, measure = done - len(taken), plan.config, plan.measure
    names, everyone = plan.leaf_names, running.of_all_workers(taken)
    speed = plan.segments.batch_at(done - 1) / timing.total

    def log() -> Progress:
        totals, seconds = progress.totals, progress.seconds
        pairs = zip(taken, everyone, strict=True)
        for number, (metrics, of_all) in enumerate(pairs, start=first):
            if config.nonfinite == "stop":
                running.check_applied(number, metrics, names)
            figures = running.step_figures(of_all)
            totals = totals.add(figures)
            if np.any(of_all.applied):  # the time of a skipped step taught nothing
                seconds += timing.total
            if is_due(number + 1, config.log_every):
                value = measure.of(figures["loss"], figures["accuracy"])
                times = {f"{part}_seconds": x for part, x in timing._asdict().items()}
                tables.steps(
                    {
                        "step": number + 1,
                        "epoch": plan.segments.epoch_at(number),
                        "learning_rate": plan.rate_on_host(number),
                        **times,
                        "images_per_second": speed,
                        measure.name: value,
                        **figures,
                    }
                )
            running.check_loss(number, metrics, config.loss_limit)
        return progress._replace(totals=totals, seconds=seconds)

    progress = on_all_processes(log)
    epoch = plan.segments.epoch_at(done - 1)
    frame.show.step(done, status(progress, epoch, plan.epochs, speed, measure))
    mark_progress()
    return progress


def status(
    progress: Progress, epoch: int, epochs: int, speed: float, measure: Measure
) -> str:
    """The text beside the live progress bar."""
    figures = progress.totals.figures()
    loss, accuracy = figures["train_loss"], figures["train_accuracy"]
    if loss is None or accuracy is None:
        return f"epoch {epoch}/{epochs}  every step skipped so far"
    return (
        f"epoch {epoch}/{epochs}  loss {loss:.4f}  {measure.name} "
        f"{measure.text(measure.of(loss, accuracy))}  {speed:,.0f} examples/s"
    )

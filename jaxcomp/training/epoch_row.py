"""The end of an epoch: its row of metrics.csv and its line on the console."""

import math
from typing import Any

from jaxcomp.runs.units import times_fewer
from jaxcomp.tasks import Measure
from jaxcomp.training.build import Setup
from jaxcomp.training.evaluation import OwnScores, Scores
from jaxcomp.training.position import Position
from jaxcomp.training.traffic import Traffic

__all__ = ["ema_columns", "epoch_line", "epoch_row", "measured", "score_columns"]


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
      >>> from jaxcomp.tasks import PERPLEXITY
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
      >>> from jaxcomp.tasks import PERPLEXITY
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
      >>> from jaxcomp.tasks import PERPLEXITY
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

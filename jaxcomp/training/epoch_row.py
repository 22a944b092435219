"""The end of an epoch: its row of metrics.csv and its line on the console."""

from typing import Any

from jaxcomp.training.build import Setup
from jaxcomp.training.evaluation import OwnScores, Scores
from jaxcomp.training.position import Position
from jaxcomp.training.traffic import Traffic

__all__ = ["epoch_line", "epoch_row", "score_columns"]

_TRAINED = (("loss", ".4f"), ("accuracy", "7.2%"))


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
      traffic: of the last step; the bytes are the mean of the epoch.
      distance: of the workers' models from their mean; None for one common model.
    """
    sent = traffic._replace(wire=position.totals.bytes_per_step())
    return {
        "epoch": -(-done // setup.horizon.steps_per_epoch),
        "step": done,
        "examples": done * setup.horizon.batch_size,
        "seconds": position.seconds,
        "learning_rate": setup.rate_on_host(done - 1),
        "wire_bytes_per_step": sent.wire,
        "dense_bytes_per_step": sent.dense,
        "compression_ratio": sent.ratio,
        "simulated": int(sent.simulated or sent.stand_in),
        "traced": int(position.totals.traced > 0),
        "consensus_distance": distance,
        "residual_grows": int(position.growth.grows),
        **position.totals.figures(),
    }


def score_columns(
    scores: Scores | None, own: OwnScores | None
) -> dict[str, float | None]:
    """The columns of an evaluation, empty where there was none.

    Example:
      >>> score_columns(Scores(0.5, 0.9), None)["test_accuracy"]
      0.9
    """
    return {
        "test_loss": scores and scores.loss,
        "test_accuracy": scores and scores.accuracy,
        "own_accuracy": own and own.mean,
        "worst_accuracy": own and own.worst,
    }


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """One line of the console for an epoch."""
    loss, accuracy = (_text(row.get(f"train_{n}"), f) for n, f in _TRAINED)
    test = row["test_accuracy"]
    tested = "" if test is None else f"  test {row['test_loss']:.4f} {test:7.2%}"
    left_out, skipped = row.get("overflow"), row.get("skipped_steps")
    room = f"  overflow {left_out:,.0f} a step" if left_out else ""
    bad = f"  {skipped:,.4g} steps skipped" if skipped else ""
    return (
        f"epoch {row['epoch']:>3}/{epochs}  train {loss} {accuracy}{tested}  "
        f"lr {row['learning_rate']:.4f}  {row['seconds']:.1f} s{room}{bad}"
    )


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)

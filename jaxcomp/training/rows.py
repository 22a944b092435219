"""Rows of metrics.csv: what is known at the end of an epoch."""

from typing import Any

from jaxcomp.training.build import Pieces
from jaxcomp.training.evaluation import OwnScores, Scores
from jaxcomp.training.position import Position
from jaxcomp.training.traffic import Traffic

__all__ = ["epoch_row", "score_columns"]


def epoch_row(
    done: int,
    position: Position,
    pieces: Pieces,
    traffic: Traffic,
    distance: float | None,
) -> dict[str, Any]:
    """All columns but those of an evaluation.

    Args:
      done: steps of the run so far.
      position: with the sums of the epoch.
      pieces: of the run.
      traffic: of the last step; the bytes are the mean of the epoch.
      distance: of the workers' models from their mean; None for one common model.
    """
    sent = traffic._replace(wire=position.totals.bytes_per_step())
    return {
        "epoch": -(-done // pieces.horizon.steps_per_epoch),
        "step": done,
        "examples": done * pieces.horizon.batch_size,
        "seconds": position.seconds,
        "learning_rate": float(pieces.rate(done - 1)),
        "wire_bytes_per_step": sent.wire,
        "dense_bytes_per_step": sent.dense,
        "compression_ratio": sent.ratio,
        "simulated": int(sent.simulated or sent.stand_in),
        "traced": int(position.totals.traced > 0),
        "consensus_distance": distance,
        "residual_grows": int(position.growth.grows),
        **position.totals.means(),
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

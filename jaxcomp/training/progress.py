"""What the host knows beside the state: sums and scores, and where to resume."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxcomp.checkpoint.save import Resizer
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import Tree
from jaxcomp.training.checkpoints import Checkpoints
from jaxcomp.training.evaluation import OwnScores, Scores
from jaxcomp.training.running_metrics import Growth, Totals
from jaxcomp.training.state import TrainState
from jaxcomp.training.traffic import Traffic

# What older checkpoints do not have, and what it is then.
_NEWER = {"left": math.nan, "exact": math.nan, "skipped": 0.0, "overflowed": 0.0}
_NEWER |= {"workers": 0}


class Position(NamedTuple):
    """What the host knows at a step, beside the state; saved with it."""

    totals: Totals = Totals()
    seconds: float = 0.0
    best: float | None = None
    scores: Scores | None = None  # of the last evaluation
    own: OwnScores | None = None  # likewise
    sent: float = 0.0  # bytes of the messages of the whole run
    left: float = 0.0  # likewise, those that left a worker; NaN: not recorded
    exact: float = 0.0  # likewise, those that would have left it with `exact`
    growth: Growth = Growth()  # of the residual
    skipped: float = 0.0  # steps of the epochs that have ended
    overflowed: float = 0.0  # likewise; the loss scale was too large for them
    workers: int = 0  # of the run at this step; 0: not recorded
    ema: Scores | None = None  # of the averaged weights, at the last evaluation

    def with_bytes(self, traffic: Traffic) -> "Position":
        """Return this with the bytes of one more step."""
        totals = self.totals._replace(
            wire=self.totals.wire + traffic.wire,
            traced=self.totals.traced + bool(traffic.unread),
        )
        return self._replace(
            totals=totals,
            sent=self.sent + traffic.wire,
            left=self.left + traffic.left,
            exact=self.exact + traffic.exact,
        )


def resume(
    checkpoints: Checkpoints,
    fresh: Callable[[], TrainState],
    like: Callable[[int], Tree],
    total: int,
    resize: Resizer | None = None,
) -> tuple[TrainState, Position, int]:
    """State, position and step of the newest whole checkpoint, or the fresh ones.

    A fresh state is made only if there is no checkpoint, because two states may need
    more memory than the devices have.

    Args:
      checkpoints: of the run.
      fresh: makes a state, spread over the workers.
      like: shapes, dtypes and shardings of the state after so many steps.
      total: steps of the whole run.
      resize: takes a state of another number of workers to the present one. The
        position stays: a step is one batch of all workers, whatever their number.
    """
    restored = checkpoints.restore(like, "last", resize)
    if restored is None:
        return fresh(), Position(), 0
    if restored.step > total:
        message = (
            f"the run is at step {restored.step} already, and train_for ends it at "
            f"step {total}: make it longer, or take another --workdir"
        )
        raise UserError(message)
    saved = restored.position
    position = Position(
        totals=Totals(**saved["totals"]),
        seconds=saved["seconds"],
        best=saved["best"],
        scores=Scores(*saved["scores"]) if saved["scores"] else None,
        own=OwnScores(*saved["own"]) if saved["own"] else None,
        sent=saved["sent"],
        growth=Growth(**saved["growth"]),
        ema=Scores(*saved["ema"]) if saved.get("ema") else None,
        **{name: saved.get(name, usual) for name, usual in _NEWER.items()},
    )
    return restored.state, position, restored.step


def plain(position: Position) -> dict[str, Any]:
    """The position as values for JSON, which keeps floats exactly."""
    parts = {"totals": position.totals, "growth": position.growth}
    as_dicts = {name: part._asdict() for name, part in parts.items()}
    return {**position._asdict(), **as_dicts}

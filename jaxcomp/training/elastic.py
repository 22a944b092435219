"""A run that goes on with another number of workers than its checkpoint has."""

from pathlib import Path

import jax
import numpy as np

from jaxcomp.base import PerWorker, Tree, is_per_worker
from jaxcomp.checkpoint import Resizer
from jaxcomp.resizing import resized, workers_of
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import note_fact, read_json
from jaxcomp.training.build import Setup
from jaxcomp.training.state import TrainState

__all__ = ["make_resize", "note_change"]


def make_resize(setup: Setup, *, allowed: bool) -> Resizer:
    """What `Checkpoints.restore` calls for a state of another number of workers.

    Args:
      setup: of the run, for the present workers.
      allowed: if not, such a checkpoint is refused, and the error says what to add.
    """

    def resize(state: TrainState, workers: int) -> TrainState:
        if not allowed:
            raise RunError(
                f"the newest checkpoint is of {workers_of(state)} workers, and the "
                f"config says {workers}: add --config.elastic=True to go on all the "
                "same"
            )
        # Each example of a batch has a carry, and a batch is divided in order.
        carry = jax.tree.map(
            lambda x: x.reshape(workers, -1, *x.shape[2:]), state.carry.value
        )
        rest = state._replace(carry=(), loss_scale=())
        new = resized(rest, workers, setup.method, lambda state: state.params)
        scale = _least_of_all(state.loss_scale, workers)
        return new._replace(carry=PerWorker(carry), loss_scale=scale)

    return resize


def _least_of_all(scale: Tree, workers: int) -> Tree:
    """The smallest loss scale of any worker, which overflows on none, for all."""
    if not is_per_worker(scale):
        return scale
    return jax.tree.map(lambda x: np.full(workers, np.min(x), x.dtype), scale)


def note_change(folder: Path, step: int, before: int, now: int) -> None:
    """Write a change of the number of workers into environment.json.

    Changes at later steps, which a checkpoint has undone, are dropped.

    Args:
      folder: of the run.
      step: from which on there are other workers.
      before: their number before it.
      now: their number after it.
    """
    earlier = read_json(folder / "environment.json").get("workers_changed", [])
    kept = [x for x in earlier if x["step"] < step]
    change = {"step": step, "before": before, "now": now}
    note_fact(folder, "workers_changed", [*kept, change])

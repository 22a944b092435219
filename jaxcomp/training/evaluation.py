"""Test loss and accuracy of a state, each example counted once."""

from collections.abc import Callable

import numpy as np

from jaxcomp import parallel
from jaxcomp.training.build import Pieces
from jaxcomp.training.feed import eval_feed
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import Sums, make_average_stats, make_eval_step

__all__ = ["Scores", "make_averager", "make_evaluator"]

Scores = tuple[float, float]  # loss, accuracy


def make_evaluator(
    pieces: Pieces, state: TrainState, batch_size: int
) -> Callable[[TrainState], Scores]:
    """A function from a state to (test loss, test accuracy).

    Args:
      pieces: of the run.
      state: spread over the workers; only its shapes are used.
      batch_size: over all workers.
    """
    workers = pieces.workers
    state_axes = parallel.axes(state)
    mapped = parallel.map_step(
        make_eval_step(pieces.model, pieces.normalize),
        workers,
        in_axes=(state_axes, 0, 0, 0),
        out_axes=0,
    )
    compiled = []

    def evaluate(state: TrainState) -> Scores:
        totals = np.zeros(3)
        feed = eval_feed(
            pieces.dataset,
            batch_size=batch_size,
            workers=workers.size,
            local=workers.local,
        )
        for batch in feed:
            placed = parallel.place(tuple(batch), workers, 0)
            if not compiled:
                compiled.append(mapped.lower(state, *placed).compile())
            sums: Sums = parallel.to_host(compiled[0](state, *placed))
            totals += [float(np.sum(total)) for total in sums]
        loss, correct, examples = parallel.sum_over_processes(totals).tolist()
        return loss / examples, correct / examples

    return evaluate


def make_averager(
    pieces: Pieces, state: TrainState
) -> Callable[[TrainState], TrainState]:
    """A function that averages local BatchNorm statistics over the workers."""
    if not isinstance(state.batch_stats, parallel.PerWorker):
        return lambda state: state
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        make_average_stats(pieces.workers.axis),
        pieces.workers,
        in_axes=(axes,),
        out_axes=axes,
        donate_argnums=(0,),
    )
    compiled = mapped.lower(state).compile()
    return lambda state: compiled(state)

"""Test loss and accuracy of a state, each example counted once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.base import Array, PerWorker, Tree, is_per_worker
from jaxcomp.tasks import Batch, Sums, Task, Variables
from jaxcomp.training.build import Setup
from jaxcomp.training.feed import eval_feed
from jaxcomp.training.state import TrainState, own
from jaxcomp.training.step import Average, make_average

__all__ = [
    "OwnScores",
    "Scores",
    "View",
    "make_evaluator",
    "make_own_evaluator",
    "make_viewer",
]


class Scores(NamedTuple):
    """Loss and accuracy of one model on the test set."""

    loss: float
    accuracy: float


class OwnScores(NamedTuple):
    """Accuracy of the workers' own models, each on the whole test set."""

    mean: float
    worst: float


class View(NamedTuple):
    """The state at the end of an epoch: to train on with, and to evaluate."""

    kept: TrainState  # with which training goes on
    shown: TrainState  # which is evaluated: the mean of what workers have of their own
    distance: float | None  # of the workers' models from their mean; None for one model


def make_viewer(setup: Setup, state: TrainState) -> Callable[[TrainState], View]:
    """Make a function that averages statistics and models over the workers.

    Local statistics of one common model are averaged for good. Models of the
    workers' own stay as they are; their mean, with the mean of the statistics, is
    shown.

    Args:
      setup: of the run.
      state: spread over the workers; only its shapes are used.
    """
    own_models = is_per_worker(state.params)
    if not own_models and not is_per_worker(state.stats):
        return lambda state: View(state, state, None)
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        make_average(setup.workers.axis),
        setup.workers,
        in_axes=(axes,),
        out_axes=(axes.params, axes.stats, None),
    )
    compiled = mapped.lower(state).compile()

    def view(state: TrainState) -> View:
        mean = Average(*compiled(state))
        shown = state._replace(params=mean.params, stats=mean.stats)
        if own_models:
            return View(state, shown, float(parallel.to_host(mean.distance)))
        return View(shown, shown, None)

    return view


def make_evaluator(
    setup: Setup, state: TrainState, batch_size: int
) -> Callable[[TrainState], Scores]:
    """Make a function from a state to its scores; the workers share the test set.

    Args:
      setup: of the run.
      state: spread over the workers; only its shapes are used.
      batch_size: over all workers.
    """
    count = _counter(setup, state, batch_size, shared=False)

    def evaluate(state: TrainState) -> Scores:
        totals = parallel.sum_over_processes(count(state).sum(axis=0))
        loss, correct, examples = totals.tolist()
        return Scores(loss / examples, correct / examples)

    return evaluate


def make_own_evaluator(
    setup: Setup, state: TrainState, batch_size: int
) -> Callable[[TrainState], OwnScores]:
    """Make a function that evaluates each worker's model on the whole test set.

    Args:
      setup: of the run.
      state: with models of the workers' own; only its shapes are used.
      batch_size: of each worker.
    """
    workers = setup.workers
    count = _counter(setup, state, batch_size, shared=True)

    def evaluate(state: TrainState) -> OwnScores:
        totals = np.zeros((workers.size, 3))
        totals[workers.local] = count(state)
        _, correct, examples = parallel.sum_over_processes(totals).T
        accuracy = correct / examples
        return OwnScores(float(accuracy.mean()), float(accuracy.min()))

    return evaluate


def _counter(
    setup: Setup, state: TrainState, batch_size: int, *, shared: bool
) -> Callable[[TrainState], np.ndarray]:
    """Make a function that sums up the test set for each local worker, [workers, 3].

    Args:
      setup: of the run.
      state: only its shapes are used.
      batch_size: of one worker where batches are shared, else of all.
      shared: whether each worker sees the whole set, and not a part of it.
    """
    workers, task = setup.workers, setup.task
    parts, local = (1, slice(0, 1)) if shared else (workers.size, workers.local)
    batch_axis = None if shared else 0
    fresh = parallel.spread(PerWorker(task.carry(batch_size // parts)), workers)
    carried = parallel.axes(fresh)
    mapped = parallel.map_step(
        _make_eval_step(task),
        workers,
        in_axes=(parallel.axes(state), carried, batch_axis, batch_axis),
        out_axes=(0, carried),
    )
    compiled: list[Any] = []

    def count(state: TrainState) -> np.ndarray:
        totals = np.zeros((workers.local.stop - workers.local.start, 3))
        carry = fresh
        feed = eval_feed(task, batch_size=batch_size, workers=parts, local=local)
        for batch in feed:
            if shared:
                batch = jax.tree.map(lambda x: x[0], batch)
            placed = parallel.place(batch, workers, batch_axis)
            if not compiled:
                compiled.append(mapped.lower(state, carry, *placed).compile())
            on_device, carry = compiled[0](state, carry, *placed)
            sums: Sums = parallel.to_host(on_device)
            totals += np.stack(jax.tree.leaves(sums), axis=-1)
        return totals

    return count


def _make_eval_step(task: Task) -> Callable[..., tuple[Sums, Tree]]:
    """Totals over a batch in which padding examples weigh 0, and the next carry."""

    def step(
        state: TrainState, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Sums, Tree]:
        variables = Variables(own(state.params), own(state.stats))
        sums, carry = task.score(variables, own(carry), batch, weights)
        return sums, PerWorker(carry)

    return step

"""Test loss and accuracy of a state, each example counted once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.core.types import Array, PerWorker, Tree, is_per_worker
from jaxcomp.training.feed import eval_feed
from jaxcomp.training.setup import Setup
from jaxcomp.training.state import TrainState, unmark
from jaxcomp.training.step import StepAverage, make_average
from jaxcomp.training.tasks import Batch, Sums, Task, Variables


class Scores(NamedTuple):
    """Loss and accuracy of one model on the test set, and what else the task scores."""

    loss: float
    accuracy: float
    figures: Mapping[str, float] = {}


class OwnScores(NamedTuple):
    """The task's measure of the workers' own models, each on the whole test set."""

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
    own_stats = is_per_worker(state.stats) and jax.tree.leaves(state.stats)
    if not own_models and not own_stats:
        return lambda state: View(state, state, None)
    axes = parallel.axes(_evaluated(state))
    mapped = parallel.map_step(
        make_average(setup.workers.axis),
        setup.workers,
        in_axes=(axes,),
        out_axes=(axes.params, axes.stats, axes.ema, None),
    )
    compiled = mapped.lower(_evaluated(state)).compile()

    def view(state: TrainState) -> View:
        mean = StepAverage(*compiled(_evaluated(state)))
        shown = state._replace(params=mean.params, stats=mean.stats, ema=mean.ema)
        if own_models:
            return View(state, shown, float(parallel.to_host(mean.distance)))
        return View(shown, shown, None)

    return view


def make_evaluator(setup: Setup, state: TrainState) -> Callable[[TrainState], Scores]:
    """Make a function from a state to its scores; the workers share the test set.

    Args:
      setup: of the run.
      state: spread over the workers; only its shapes are used.
    """
    count = _counter(setup, state, shared=False)

    def evaluate(state: TrainState) -> Scores:
        totals = parallel.sum_over_processes(count(state).sum(axis=0))
        loss, correct, examples, *others = totals.tolist()
        means = (total / examples for total in others)
        figures = dict(zip(setup.task.scored, means, strict=True))
        return Scores(loss / examples, correct / examples, figures)

    return evaluate


def of_average(
    score: Callable[[TrainState], Scores], shown: TrainState
) -> Scores | None:
    """The scores of the averaged weights of a state; None where it has none.

    Running statistics are means over steps as they are, and belong to both.

    Args:
      score: from `make_evaluator`.
      shown: the state that is evaluated.
    """
    if not jax.tree.leaves(shown.ema):
        return None
    return score(shown._replace(params=shown.ema))


def make_own_evaluator(
    setup: Setup, state: TrainState
) -> Callable[[TrainState], OwnScores]:
    """Make a function that evaluates each worker's model on the whole test set.

    A batch of each worker is as large as one of all workers is elsewhere.

    Args:
      setup: of the run.
      state: with models of the workers' own; only its shapes are used.
    """
    workers, measure = setup.workers, setup.task.measure
    count = _counter(setup, state, shared=True)

    def evaluate(state: TrainState) -> OwnScores:
        totals = np.zeros((workers.size, 3))
        totals[workers.local] = count(state)[:, :3]
        loss, correct, examples = parallel.sum_over_processes(totals).T
        means = np.stack([loss, correct], axis=1) / examples[:, None]
        values = [measure.of(*pair) for pair in means.tolist()]
        return OwnScores(sum(values) / len(values), measure.worst(values))

    return evaluate


def _counter(
    setup: Setup, state: TrainState, *, shared: bool
) -> Callable[[TrainState], np.ndarray]:
    """Make a function that sums up the test set: [local workers, 3 + m].

    The last m are those that the task names in `scored`.

    Args:
      setup: of the run.
      state: only its shapes are used.
      shared: whether each worker sees the whole set, and not a part of it.
    """
    workers, task, batch_size = setup.workers, setup.task, setup.eval_batch
    parts, local = (1, slice(0, 1)) if shared else (workers.size, workers.local)
    batch_axis = None if shared else 0
    fresh = parallel.spread(PerWorker(task.carry(batch_size // parts)), workers)
    carried = parallel.axes(fresh)
    here = workers.local.stop - workers.local.start
    zeros = parallel.place(
        np.zeros((here, 3 + len(task.scored), 2), np.float32), workers, 0
    )
    mapped = parallel.map_step(
        _make_eval_step(task),
        workers,
        in_axes=(parallel.axes(_evaluated(state)), 0, carried, batch_axis, batch_axis),
        out_axes=(0, carried),
    )
    compiled: dict[Any, Any] = {}  # by the shapes of a batch

    def count(state: TrainState) -> np.ndarray:
        state = _evaluated(state)
        totals, carry = zeros, fresh
        feed = eval_feed(task, batch_size=batch_size, workers=parts, local=local)
        for batch in feed:
            if shared:
                batch = jax.tree.map(lambda x: x[0], batch)
            placed = parallel.place(batch, workers, batch_axis)
            shapes = tuple(array.shape for array in batch[0])
            if shapes not in compiled:
                lowered = mapped.lower(state, totals, carry, *placed)
                compiled[shapes] = lowered.compile()
            totals, carry = compiled[shapes](state, totals, carry, *placed)
            parallel.throttle((totals, carry))
        return parallel.to_host(totals).astype(np.float64).sum(axis=-1)

    return count


def _evaluated(state: TrainState) -> TrainState:
    """The state without what an optimiser keeps, of which another regime has other."""
    return state._replace(opt_state=(), carry=())


def _make_eval_step(task: Task) -> Callable[..., tuple[Array, Tree]]:
    """Totals [3 + m, 2] of the batches so far, and the next carry; padding weighs 0.

    Each total is two float32 numbers, of which the second holds what rounding took from
    the first. So the sum over many batches is as exact as in float64.
    """

    def step(
        state: TrainState, totals: Array, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Array, Tree]:
        variables = Variables(unmark(state.params), unmark(state.stats))
        sums, carry = task.score(variables, unmark(carry), batch, weights)
        loss, correct, examples, figures = Sums(*sums)
        others = (figures[name] for name in task.scored)
        return _plus(totals, (loss, correct, examples, *others)), PerWorker(carry)

    return step


def _plus(totals: Array, sums: Sequence[Array]) -> Array:
    """Totals with rounding errors, and one more batch: Knuth's exact addition."""
    high, low = totals[:, 0], totals[:, 1]
    x = jnp.stack([jnp.asarray(x, jnp.float32) for x in sums])
    new = high + x
    added = new - high
    lost = (high - (new - added)) + (x - added)
    return jnp.stack([new, low + lost], axis=-1)

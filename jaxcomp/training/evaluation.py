"""Evaluation: of a state, at the end of an epoch, and of a kept checkpoint."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.core.types import Array, PerWorker, Tree, is_per_worker
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.placing import sum_over_processes
from jaxcomp.parallel.workers import throttle
from jaxcomp.runs.folder import RunError, check_config
from jaxcomp.runs.open_run import Frame, keep_programs
from jaxcomp.training import checkpoints, diagnostics
from jaxcomp.training.feed import eval_feed
from jaxcomp.training.plan import RunPlan, Triggers, build, gather_workers, settled
from jaxcomp.training.programs import Traffic
from jaxcomp.training.running_metrics import OwnScores, Scores, Totals
from jaxcomp.training.segments import RunSegments
from jaxcomp.training.state import TrainState, unmark
from jaxcomp.training.step import StepAverage, make_average
from jaxcomp.training.tables import (
    Tables,
    ema_columns,
    epoch_line,
    epoch_row,
    score_columns,
)
from jaxcomp.training.tasks import Batch, Sums, Task, Variables


class View(NamedTuple):
    """The state at the end of an epoch: to train on with, and to evaluate."""

    kept: TrainState  # with which training goes on
    shown: TrainState  # which is evaluated: the mean of what workers have of their own
    distance: float | None  # of the workers' models from their mean; None for one model


def make_viewer(plan: RunPlan, state: TrainState) -> Callable[[TrainState], View]:
    """Make a function that averages statistics and models over the workers.

    Local statistics of one common model are averaged for good. Models of the
    workers' own stay as they are; their mean, with the mean of the statistics, is
    shown.

    Args:
      plan: of the run.
      state: spread over the workers; only its shapes are used.
    """
    own_models = is_per_worker(state.params)
    own_stats = is_per_worker(state.stats) and jax.tree.leaves(state.stats)
    if not own_models and not own_stats:
        return lambda state: View(state, state, None)
    axes = parallel.axes(_evaluated(state))
    mapped = parallel.map_step(
        make_average(plan.workers.axis),
        plan.workers,
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


def make_evaluator(plan: RunPlan, state: TrainState) -> Callable[[TrainState], Scores]:
    """Make a function from a state to its scores; the workers share the test set.

    Args:
      plan: of the run.
      state: spread over the workers; only its shapes are used.
    """
    count = _counter(plan, state, shared=False)

    def evaluate(state: TrainState) -> Scores:
        totals = sum_over_processes(count(state).sum(axis=0))
        loss, correct, examples, *others = totals.tolist()
        means = (total / examples for total in others)
        figures = dict(zip(plan.task.scored, means, strict=True))
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
    plan: RunPlan, state: TrainState
) -> Callable[[TrainState], OwnScores]:
    """Make a function that evaluates each worker's model on the whole test set.

    A batch of each worker is as large as one of all workers is elsewhere.

    Args:
      plan: of the run.
      state: with models of the workers' own; only its shapes are used.
    """
    workers, measure = plan.workers, plan.measure
    count = _counter(plan, state, shared=True)

    def evaluate(state: TrainState) -> OwnScores:
        totals = np.zeros((workers.size, 3))
        totals[workers.local] = count(state)[:, :3]
        loss, correct, examples = sum_over_processes(totals).T
        means = np.stack([loss, correct], axis=1) / examples[:, None]
        values = [measure.of(*pair) for pair in means.tolist()]
        return OwnScores(sum(values) / len(values), measure.worst(values))

    return evaluate


def _counter(
    plan: RunPlan, state: TrainState, *, shared: bool
) -> Callable[[TrainState], np.ndarray]:
    """Make a function that sums up the test set: [local workers, 3 + m].

    The last m are those that the task names in `scored`.

    Args:
      plan: of the run.
      state: only its shapes are used.
      shared: whether each worker sees the whole set, and not a part of it.
    """
    workers, task, batch_size = plan.workers, plan.task, plan.eval_batch
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
            throttle((totals, carry))
        return parallel.to_host(totals).astype(np.float64).sum(axis=-1)

    return count


def _evaluated(state: TrainState) -> TrainState:
    """The state without what an optimiser keeps, of which another segment has other."""
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


def make_end_of_epoch(
    plan: RunPlan,
    frame: Frame,
    tables: Tables,
    state: TrainState,
    score: Callable[[TrainState], Scores],
    initial: Tree | None = None,
) -> Callable[..., tuple[TrainState, checkpoints.Progress, bool]]:
    """Make a function that evaluates what is due, and writes the row of an epoch.

    Args:
      plan: of the run.
      frame: of the run.
      tables: where the row goes.
      state: like those that will be evaluated.
      score: evaluates a state.
      initial: parameters with which it began, on the host; None where they are lost.

    Returns:
      A function that returns the state to go on with, the progress, and whether it is
      the best so far.
    """
    view = make_viewer(plan, state)
    score_own, measure = make_own_evaluator(plan, state), plan.measure
    view_layers = diagnostics.make_layer_view(plan, state)

    def end_of_epoch(
        done: int,
        due: Triggers,
        state: TrainState,
        progress: checkpoints.Progress,
        traffic: Traffic,
    ) -> tuple[TrainState, checkpoints.Progress, bool]:
        seen = view(state)
        scores = own = ema = None
        is_best = False
        if due.evaluates:
            scores = score(seen.shown)
            value = measure.of(*scores[:2])
            is_best = measure.beats(value, progress.best)
            best = measure.better(value, progress.best)
            ema = of_average(score, seen.shown)
            progress = progress._replace(scores=scores, best=best, ema=ema)
        if due.evaluates_own and is_per_worker(state.params):
            own = score_own(seen.kept)
            progress = progress._replace(own=own)
        row = epoch_row(done, progress, plan, traffic, seen.distance)
        row |= score_columns(scores, own, measure) | ema_columns(ema, measure)
        if initial is not None:
            now = diagnostics.params_on_host(seen.shown)
            row["distance"] = diagnostics.distance_between(now, initial)
        layers = view_layers(state, done, due.epoch) if due.views_layers else []

        def write() -> None:
            tables.epochs(row)
            for layer in layers:
                tables.layers(layer)

        on_all_processes(write)
        frame.show.say(epoch_line(row, plan.epochs, measure))
        skipped = progress.skipped + row["skipped_steps"]
        overflowed = progress.overflowed + (row.get("overflowed_steps") or 0.0)
        progress = progress._replace(
            totals=Totals(), skipped=skipped, overflowed=overflowed
        )
        return seen.kept, progress, is_best

    return end_of_epoch


def evaluate(
    config: Any,
    workdir: str | os.PathLike[str],
    which: str = "best",
    split: str = "test",
) -> dict[str, float]:
    """Loss, accuracy and measure of a checkpoint of a run.

    Args:
      config: of the run.
      workdir: its folder.
      which: "best", "last" or the number of a step.
      split: "test", or "train" for the training set without augmentation.
    """
    folder, workers = Path(workdir), gather_workers(config)
    config = settled(config, workers)
    plainly = json.loads(config.to_json())
    check_config(folder, plainly)
    plan = build(config, workers)
    if split == "train":  # in the batches of training: columns of a text go on so
        plan = _of_train(plan)
    keep_programs()
    # The best may be of other workers.
    path = folder / "checkpoints"
    kept = checkpoints.open_checkpoints(path, config=plainly, elastic=True)
    resize = checkpoints.make_resize(plan, allowed=True)
    restored = kept.restore(checkpoints.saved_like(plan), which, resize)
    if restored is None:
        there = checkpoints.what_is_in(path)
        raise RunError(f"{workdir} holds no checkpoint {which!r}; {there}")
    shown = make_viewer(plan, restored.state)(restored.state).shown
    score, measure = make_evaluator(plan, shown), plan.measure
    columns = score_columns(score(shown), None, measure)
    columns |= ema_columns(of_average(score, shown), measure)
    known = {name: value for name, value in columns.items() if value is not None}
    figures = {n.replace("test_", f"{split}_", 1): x for n, x in known.items()}
    return {"step": restored.step, **figures}


def _of_train(plan: RunPlan) -> RunPlan:
    """The plan with the training set of its last task as the one that is evaluated."""
    config = plan.config.copy_and_resolve_references()
    config.eval_batch_size = 0
    task = plan.segments.each[-1].task
    task = task._replace(test=task.train)
    each = tuple(segment._replace(task=task) for segment in plan.segments.each)
    return plan._replace(config=config, segments=RunSegments(each))

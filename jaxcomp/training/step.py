"""The training step of one worker, for any mapper that binds the axis name."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.convex.averages import Average
from jaxcomp.core.errors import UserError
from jaxcomp.core.trees import norms, widen, zeros_like_spec
from jaxcomp.core.types import Array, Axis, Tree, is_per_worker
from jaxcomp.exchanges.overlap import WHOLE, Cut
from jaxcomp.training.state import (
    UNSCALED,
    LossScale,
    TrainState,
    mark_like,
    moved,
    unmark,
    value_and_grad,
)
from jaxcomp.training.tasks import Task
from jaxcomp.transforms.distributed import find_state
from jaxcomp.transforms.nonfinite import all_finite, applied_if, instead_of_bad


class StepMetrics(NamedTuple):
    """The figures of one step on one worker; the host averages them."""

    loss: Array  # [] mean over the worker's examples
    accuracy: Array  # []
    applied: Array  # [] bool: False where something was not finite and nothing changed
    gradient_norms: Array  # [leaves] of the local gradient
    gradient_error: Array  # [] |given - sent|^2 / |given|^2
    sends: Array  # [] bool: whether the step sent anything, and so has such an error
    residual_norm: Array  # []
    figures: dict[str, Array]  # each []; what exchange, task and loss scale name


def make_train_step(
    task: Task,
    tx: optax.GradientTransformationExtraArgs,
    *,
    seed: int,
    axis: Axis,
    accumulate: int = 1,
    cut: Cut = WHOLE,
    ema: Average | None = None,
    scale: LossScale = UNSCALED,
) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """One step of a worker: local gradient, the chain with its exchange, update.

    A step with a non-finite loss or gradient on any worker changes nothing but the
    clocks, on every worker, without a message of its own: the worker sets each part of
    its gradient that is not finite to NaN, or all of it after a bad loss. Compressors
    never hide a part that is all NaN, so every worker sees it in the mean.

    Where workers have models of their own, a worker with a bad gradient learns nothing
    from it and talks as usual: its neighbours count on its messages. Its loss scale is
    its own, too.

    Args:
      task: what is learned.
      tx: chain with one `distributed` or `mixing`.
      seed: of all random choices of the run.
      axis: of the workers.
      accumulate: micro-batches whose gradients are averaged before the one exchange.
      cut: the parts in which the gradient is sent. No part waits for another one.
      ema: rule of the average of the parameters; None for none.
      scale: of the loss; the gradient is divided by it before anything else is done.

    Returns:
      A function from a state and the arrays of a batch to the next state.
    """
    base_key = jax.random.key(seed)
    gradient_of = _make_gradient(task, scale, accumulate)

    def step(state: TrainState, *batch: Array) -> tuple[TrainState, StepMetrics]:
        step_key = jax.random.fold_in(base_key, state.step)
        exchange_key, own_key = jax.random.split(step_key)
        own_key = jax.random.fold_in(own_key, jax.lax.axis_index(axis))
        new, (loss, accuracy, figures, grads) = gradient_of(state, batch, own_key)
        has_own_model = is_per_worker(state.params)
        instead = 0.0 if has_own_model else jnp.nan
        grads, lengths, healthy = _made_visible(cut, grads, loss, instead)
        params, old = unmark(state.params), unmark(state.opt_state)
        updates, opt_state = tx.update(grads, old, params, key=exchange_key)
        applied = all_finite(updates)
        if has_own_model:  # else `applied`, which all workers share, decides of all
            before = unmark(state.stats), unmark(state.carry)
            new = jax.tree.map(lambda x, old: jnp.where(healthy, x, old), new, before)
        moved_to: Any = optax.apply_updates(params, updates)
        average = moved(unmark(state.ema), moved_to, ema, state.step)
        parts = (moved_to, *new, opt_state, average)
        marked = map(mark_like, state[: len(parts)], parts)
        new_state = TrainState(*marked, loss_scale=state.loss_scale)
        if not has_own_model:
            new_state = applied_if(applied, new_state, state)
        loss_scale = unmark(state.loss_scale)
        scaled = scale.after(loss_scale, healthy if has_own_model else applied)
        new_state = new_state._replace(loss_scale=mark_like(state.loss_scale, scaled))
        info, took = find_state(opt_state).info.value, applied & healthy
        lost = ~took & jnp.isfinite(loss)
        metrics = StepMetrics(
            loss=loss,
            accuracy=accuracy,
            applied=took,
            gradient_norms=lengths,
            gradient_error=info.gradient_error,
            sends=info.sends,
            residual_norm=info.residual_norm,
            figures={**info.extra, **figures, **scale.report(loss_scale, lost)},
        )
        return new_state, metrics

    return step


def _made_visible(
    cut: Cut, grads: Tree, loss: Array, instead: float
) -> tuple[Tree, Array, Array]:
    """The gradient, whose bad parts all will see; its norms; whether it is healthy."""

    def is_healthy(lengths: list[Array]) -> Array:
        return jnp.isfinite(loss) & jnp.all(jnp.isfinite(jnp.stack(lengths)))

    by_leaf = cut.map(norms, grads)
    grads = cut.map(
        lambda part, lengths: instead_of_bad(part, is_healthy(lengths), instead),
        grads,
        by_leaf,
    )
    lengths = jax.tree.leaves(by_leaf)
    return grads, jnp.stack(lengths), is_healthy(lengths)


def _make_gradient(
    task: Task, scale: LossScale, accumulate: int
) -> Callable[[TrainState, Any, Array], Any]:
    """Make a function from a state, a batch and a key to what a worker learns of it.

    That is the new statistics and carry; and loss, accuracy, figures and gradient.
    """

    def gradient(state: TrainState, batch: Any, key: Array) -> Any:
        params = unmark(state.params)
        factor = scale.factor(unmark(state.loss_scale))

        def of_part(stats: Tree, carry: Tree, batch: Any, key: Array) -> Any:
            differentiated = value_and_grad(task.loss, factor)
            (loss, new), gradient = differentiated(params, stats, carry, batch, key)
            if new.figures.keys() != set(task.figures):
                names = sorted(new.figures)
                message = (
                    f"the task names the figures {task.figures}, and gives {names}"
                )
                raise UserError(message)
            # The loss too, whose sum over the parts may be beyond float16.
            averaged = (widen(loss), new.accuracy, dict(new.figures), gradient)
            return new.stats, new.carry, averaged

        given = unmark(state.stats), unmark(state.carry), batch, key
        if accumulate == 1:
            *new, averaged = of_part(*given)
        else:
            *new, averaged = _over_micro_batches(of_part, *given, accumulate)
        return tuple(new), averaged

    return gradient


class StepAverage(NamedTuple):
    """The mean model of all workers, and how far the workers are from it."""

    params: Tree
    stats: Tree
    ema: Tree
    distance: Array  # [] root of the mean over workers of |x_i - mean|^2


def make_average(axis: Axis) -> Callable[[TrainState], tuple[Any, ...]]:
    """Make a function that averages the models and statistics of the workers.

    Returns:
      A function from a state to the fields of an `Average`.
    """

    def average(state: TrainState) -> tuple[Any, ...]:
        parts = (state.params, state.stats, state.ema)
        params, stats, ema = (
            mark_like(x, jax.lax.pmean(x.value, axis)) if is_per_worker(x) else x
            for x in parts
        )
        apart = jax.tree.map(
            lambda x, mean: jnp.sum(jnp.square(x - mean)),
            unmark(state.params),
            unmark(params),
        )
        distance = jnp.sqrt(jax.lax.pmean(sum(jax.tree.leaves(apart)), axis))
        return tuple(StepAverage(params, stats, ema, distance))

    return average


def _over_micro_batches(
    function: Callable[[Tree, Tree, Any, Array], Any],
    stats: Tree,
    carry: Tree,
    batch: tuple[Array, ...],
    key: Array,
    count: int,
) -> Any:
    """Mean of what `function` returns for each micro-batch, the statistics passed on.

    Sums are kept, not the gradients of all micro-batches. Each example has a carry of
    its own.
    """
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), (carry, batch))
    keys = jax.random.split(key, count)

    def step(so_far: Any, micro: Any) -> Any:
        stats, sums = so_far
        stats, carry, result = function(stats, *micro)
        return (stats, jax.tree.map(jnp.add, sums, result)), carry

    micro = (*parts, keys)
    one = jax.tree.map(lambda x: x[0], micro)
    zeros = zeros_like_spec(jax.eval_shape(function, stats, *one)[-1])
    (stats, sums), carries = jax.lax.scan(step, (stats, zeros), micro)
    carry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), carries)
    return stats, carry, jax.tree.map(lambda x: x / count, sums)

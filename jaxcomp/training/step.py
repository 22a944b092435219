"""The per-worker step: pure, written against an axis name, ignorant of its mapper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Array, Tree, is_per_worker, ticked
from jaxcomp.nonfinite import all_finite, applied_if, instead_of_bad
from jaxcomp.training.state import TrainState, like, own
from jaxcomp.transform import find_state
from jaxcomp.trees import norms, zeros_like_spec

__all__ = [
    "Average",
    "StepMetrics",
    "Sums",
    "make_average",
    "make_eval_step",
    "make_train_step",
]


class StepMetrics(NamedTuple):
    """What one worker reports of one step; the host averages, without a message."""

    loss: Array  # [] mean over the worker's examples
    accuracy: Array  # []
    applied: Array  # [] bool: False where something was not finite and nothing changed
    gradient_norms: Array  # [leaves] of the local gradient
    gradient_error: Array  # [] |given - sent|^2 / |given|^2
    sends: Array  # [] bool: whether the step sent anything, and so has such an error
    residual_norm: Array  # []
    figures: dict[str, Array]  # each []; what the exchange names in its `figures`


class Sums(NamedTuple):
    """Totals of one worker over an evaluation batch."""

    loss: Array
    correct: Array
    examples: Array


def make_train_step(
    model: Any,
    tx: optax.GradientTransformationExtraArgs,
    augment: Callable[[Array, Array], Array],
    *,
    seed: int,
    axis: str,
    accumulate: int = 1,
) -> Callable[[TrainState, Array, Array], tuple[TrainState, StepMetrics]]:
    """Hops 2 to 8 of a step: local gradient, the chain with its exchange, update.

    A step with a non-finite loss or gradient on any worker changes nothing but the
    clocks, on every worker, without a message of its own: the worker poisons its whole
    gradient with NaN, compressors never hide a NaN, so all see it in the mean.

    Where workers have models of their own, a worker with a bad gradient learns nothing
    from it and talks as usual: its neighbours count on its messages.

    Args:
      model: flax module, called as model(images, train).
      tx: chain with one `distributed` or `mixing`.
      augment: (uint8 images, key) -> float32 images.
      seed: of all random choices of the run.
      axis: name of the mapped axis.
      accumulate: micro-batches whose gradients are averaged before the one exchange.
    """
    base_key = jax.random.key(seed)

    def step(
        state: TrainState, images: Array, labels: Array
    ) -> tuple[TrainState, StepMetrics]:
        step_key = jax.random.fold_in(base_key, state.step)
        exchange_key, own_key = jax.random.split(step_key)
        own_key = jax.random.fold_in(own_key, jax.lax.axis_index(axis))

        def gradient_of(stats: Tree, batch: tuple[Array, Array, Array]) -> Any:
            """Statistics, loss, accuracy and gradient of one micro-batch."""
            images, labels, key = batch
            augment_key, dropout_key = jax.random.split(key)
            inputs = augment(images, augment_key)

            def loss_of(params: Tree) -> tuple[Array, tuple[Array, Tree]]:
                logits, new = model.apply(
                    {"params": params, "batch_stats": stats},
                    inputs,
                    train=True,
                    mutable=["batch_stats"],
                    rngs={"dropout": dropout_key},
                )
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return jnp.mean(losses), (logits, new.get("batch_stats", {}))

            differentiated = jax.value_and_grad(loss_of, has_aux=True)
            (loss, (logits, new)), gradient = differentiated(params)
            accuracy = jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))
            return new, (loss, accuracy, gradient)

        params, stats = own(state.params), own(state.batch_stats)
        if accumulate == 1:
            stats, averaged = gradient_of(stats, (images, labels, own_key))
        else:
            stats, averaged = _over_micro_batches(
                gradient_of, stats, (images, labels), own_key, accumulate
            )
        loss, accuracy, grads = averaged
        lengths = jnp.stack(norms(grads))
        healthy = jnp.isfinite(loss) & jnp.all(jnp.isfinite(lengths))
        has_own_model = is_per_worker(state.params)
        instead = 0.0 if has_own_model else jnp.nan
        grads = instead_of_bad(grads, healthy, instead)
        updates, opt_state = tx.update(
            grads, own(state.opt_state), params, key=exchange_key
        )
        applied = all_finite(updates)
        stats = jax.tree.map(
            lambda new, old: jnp.where(healthy, new, old), stats, own(state.batch_stats)
        )
        new_state = TrainState(
            clock=ticked(state.clock),
            params=like(state.params, optax.apply_updates(params, updates)),
            batch_stats=like(state.batch_stats, stats),
            opt_state=like(state.opt_state, opt_state),
        )
        info = find_state(opt_state).info.value
        metrics = StepMetrics(
            loss=loss,
            accuracy=accuracy,
            applied=applied & healthy,
            gradient_norms=lengths,
            gradient_error=info.gradient_error,
            sends=info.sends,
            residual_norm=info.residual_norm,
            figures=info.extra,
        )
        if has_own_model:
            return new_state, metrics
        return applied_if(applied, new_state, state), metrics

    return step


def make_eval_step(
    model: Any, normalize: Callable[[Array], Array]
) -> Callable[[TrainState, Array, Array, Array], Sums]:
    """Totals over a batch in which padding examples weigh 0."""

    def step(state: TrainState, images: Array, labels: Array, weights: Array) -> Sums:
        variables = {
            "params": own(state.params),
            "batch_stats": own(state.batch_stats),
        }
        logits = model.apply(variables, normalize(images), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        correct = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
        return Sums(
            loss=jnp.sum(losses * weights),
            correct=jnp.sum(correct * weights),
            examples=jnp.sum(weights),
        )

    return step


class Average(NamedTuple):
    """The mean model of all workers, and how far the workers are from it."""

    params: Tree
    batch_stats: Tree
    distance: Array  # [] root of the mean over workers of |x_i - mean|^2


def make_average(axis: str) -> Callable[[TrainState], tuple[Any, ...]]:
    """The mean over the workers of what they have of their own, statistics included.

    Returns:
      A function from a state to the fields of an `Average`.
    """

    def average(state: TrainState) -> tuple[Any, ...]:
        parts = (state.params, state.batch_stats)
        params, stats = (
            like(x, jax.lax.pmean(x.value, axis)) if is_per_worker(x) else x
            for x in parts
        )
        apart = jax.tree.map(
            lambda x, mean: jnp.sum(jnp.square(x - mean)),
            own(state.params),
            own(params),
        )
        distance = jnp.sqrt(jax.lax.pmean(sum(jax.tree.leaves(apart)), axis))
        return tuple(Average(params, stats, distance))

    return average


def _over_micro_batches(
    function: Callable[[Tree, Any], Any],
    stats: Tree,
    batch: tuple[Array, Array],
    key: Array,
    count: int,
) -> Any:
    """Mean of what `function` returns for each micro-batch, the statistics passed on.

    Sums are kept, not the gradients of all micro-batches.
    """
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    keys = jax.random.split(key, count)

    def step(carry: Any, part: Any) -> Any:
        stats, sums = carry
        stats, result = function(stats, part)
        return (stats, jax.tree.map(jnp.add, sums, result)), None

    micro = (*parts, keys)
    one = jax.tree.map(lambda x: x[0], micro)
    zeros = zeros_like_spec(jax.eval_shape(function, stats, one)[1])
    (stats, sums), _ = jax.lax.scan(step, (stats, zeros), micro)
    return stats, jax.tree.map(lambda x: x / count, sums)

"""Steps with a NaN or an infinity on some worker: all workers skip them, or none.

A worker that decided by its own gradient would decide alone. Its model would then
differ from those of the others, or they would wait for it in a collective. So a worker
with a NaN or an infinity sets its whole gradient to NaN. Compressors never hide that:
every worker sees it in the mean, and no extra message is needed. Where a gradient is
sent in parts, the parts with a NaN or an infinity are enough; a single NaN is not,
because a sparsifier may leave it out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.trees import varies_over
from jaxcomp.core.types import Array, Exchange, State, Tree, is_clock
from jaxcomp.exchanges.overlap import WHOLE, Cut


class Attempt(NamedTuple):
    """What `attempt` returns."""

    result: Tree
    state: State
    applied: Array  # [] bool, the same on all workers


def all_finite(tree: Tree) -> Array:
    """Whether no element is a NaN or an infinity.

    Example:
      >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array([1.0, jnp.nan])}))
      False
    """
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.bool_(True)


def instead_of_bad(tree: Tree, healthy: Array, value: float = jnp.nan) -> Tree:
    """The tree if it is healthy, and else one value in all of its elements.

    Example:
      >>> instead_of_bad(jnp.array([1.0, jnp.inf]), jnp.bool_(False))
      Array([nan, nan], dtype=float32)
    """

    def of(x: Array) -> Array:
        # An array that all workers share would get the type of one that differs, and
        # would no longer be refused.
        is_shared = not varies_over(healthy) <= varies_over(x)
        return x if is_shared else jnp.where(healthy, x, value)

    return jax.tree.map(of, tree)


def applied_if(applied: Array, new: State, old: State) -> State:
    """The new state; if the step is not applied, the old one with the new clocks.

    Args:
      applied: the same on all workers.
      new: any state, such as that of an optax chain.
      old: of the same structure.
    """

    def chosen(new: Any, old: Any) -> Any:
        return new if is_clock(new) else jnp.where(applied, new, old)

    return jax.tree.map(chosen, new, old, is_leaf=is_clock)


def attempt(
    update: Callable[[Tree, State], tuple[Tree, State]],
    tree: Tree,
    state: State,
    cut: Cut = WHOLE,
) -> Attempt:
    """Run an update that averages; if the result is not finite, the state stays.

    Args:
      update: (tree, state) -> (result, state), with an exchange in it.
      tree: of this worker.
      state: before the update; its clocks go on in any case.
      cut: the parts in which the tree is sent, so that no part waits for another one.
    """
    shown = cut.map(lambda part: instead_of_bad(part, all_finite(part)), tree)
    result, new = update(shown, state)
    applied = all_finite(result)
    return Attempt(result, applied_if(applied, new, state), applied)


def skip_nonfinite(
    tx: optax.GradientTransformation, *, exchange: Exchange | None = None
) -> optax.GradientTransformationExtraArgs:
    """Skip a step on all workers if a gradient of any of them is not finite.

    Updates are zero then, and only the clocks of the state go on. It is for a chain
    with a `distributed` in it. `optax.apply_if_finite` would decide by the gradient of
    each worker alone. A chain that ends in `mixing` does not need it. There a worker
    that skips a step has to go on sending, so put `optax.apply_if_finite` around the
    links before `mixing`.

    Args:
      tx: the whole chain.
      exchange: that of its `distributed`, if it sends parts of the gradient early:
        without it all messages would wait for the whole gradient.

    Example:
      >>> import jaxcomp
      >>> link = jaxcomp.distributed(jaxcomp.make_exchange("exact"), seed=0)
      >>> tx = skip_nonfinite(optax.chain(link, optax.sgd(0.1)))
      >>> state = tx.init(jnp.ones(2))
      >>> grads = jnp.array([[1.0, 2.0], [jnp.nan, 2.0]])  # two workers
      >>> step = lambda g: tx.update(g, state)[0]
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([0., 0.], dtype=float32)
    """
    tx = optax.with_extra_args_support(tx)
    cut = exchange.cut if exchange and exchange.cut else WHOLE

    def update(
        updates: Tree, state: Any, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, Any]:
        step = attempt(
            lambda tree, state: tx.update(tree, state, params, **extra),
            updates,
            state,
            cut,
        )
        return instead_of_bad(step.result, step.applied, 0.0), step.state

    return optax.GradientTransformationExtraArgs(tx.init, update)

"""Whose state is it: marks for other people's links, and a check of all marks."""

from typing import Any

import jax
import numpy as np
import optax

from jaxcomp.base import PerWorker, Tree, is_per_worker, vary_like
from jaxcomp.transform import find_states

__all__ = ["check_state", "per_worker"]


def per_worker(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Mark the state of a link as the worker's own.

    For what stands before `distributed` and remembers something of the local gradient,
    such as `optax.trace`, `optax.ema` or a clipping that adapts. Unmarked it
    is taken to be the same on all workers, and a checkpoint keeps one worker's.

    Args:
      tx: any link before the exchange.

    Example:
        >>> import jax.numpy as jnp
        >>> per_worker(optax.trace(0.9)).init(jnp.zeros(2))
        PerWorker(value=TraceState(trace=Array([0., 0.], dtype=float32)))
    """
    tx = optax.with_extra_args_support(tx)

    def init(params: Tree) -> PerWorker:
        return PerWorker(tx.init(params))

    def update(
        updates: Tree, state: Any, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, PerWorker]:
        updates, new = tx.update(updates, state.value, params, **extra)
        return updates, vary_like(PerWorker(new), updates)

    return optax.GradientTransformationExtraArgs(init, update)


def check_state(state: Tree) -> None:
    """Refuse a state whose marks do not tell the truth; call it after a few steps.

    What is not marked has to be the same on all workers, and what is marked has to be
    there for each of them. Otherwise a checkpoint keeps one worker's part for all. It
    looks at what this process holds, so it is not for the inside of a step.

    Args:
      state: params, optimiser and all, as the mapped step returned it.

    Raises:
      ValueError: names each such part, and what to do.
    """
    clocks = [np.ndim(found.clock.step) for found in find_states(state)]
    is_stacked = any(clocks)  # as by flax's `replicate`: all of it has a leading axis
    wrong = []
    nodes, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_per_worker)
    for path, node in nodes:
        for inner, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
            name = jax.tree_util.keystr((*path, *inner), simple=True, separator="/")
            problem = _problem(leaf, is_per_worker(node), is_stacked)
            if problem:
                wrong.append(f"{name} {problem}")
    if wrong:
        raise ValueError("; ".join(wrong))


_WAY_OUT = (
    "is not marked, and differs between workers: mark the link it belongs to, "
    "jaxcomp.per_worker(tx), if it stands before the exchange; a link or a part of the "
    "model that no exchange averages lets replicas drift apart"
)
_DECLARED = (
    "is marked as each worker's own and declared the same on all of them: map the step "
    "with jaxcomp.parallel.axes(state) as in_axes and out_axes, or give all of the "
    "state a leading axis"
)


def _problem(leaf: Any, is_marked: bool, is_stacked: bool) -> str | None:
    """What is wrong with a leaf, if anything is."""
    if not isinstance(leaf, jax.Array):
        return None
    copies: dict[str, bytes] = {}
    is_same = True
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data).tobytes()
        is_same &= copies.setdefault(str(shard.index), data) == data
    is_declared_same = leaf.is_fully_replicated and len(leaf.sharding.device_set) > 1
    if is_marked:
        return _DECLARED if is_declared_same else None
    if is_stacked and not is_declared_same:
        rows = np.asarray(leaf)
        is_same &= all(row.tobytes() == rows[0].tobytes() for row in rows)
    return None if is_same else _WAY_OUT

"""Whose state is it: marks for other people's links, and a check of all marks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp.base import PerWorker, Tree, is_per_worker
from jaxcomp.keys import numbers_of
from jaxcomp.link_state import DistributedState
from jaxcomp.trees import name_of, vary_like

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
    there for each of them. Otherwise a checkpoint keeps one worker's part for all. And
    what workers keep of their gradients differs: if it does not, these were averaged
    before the exchange. (Where each draws for itself, it differs all the same.) It
    looks at what this process holds, so it is not for the inside of a step.

    Args:
      state: params, optimiser and all, as the mapped step returned it.

    Raises:
      ValueError: names each such part, and what to do.
    """
    nodes = _nodes(state, lambda x: is_per_worker(x) or _is_link(x))
    clocks = [np.ndim(node.clock.step) for _, node in nodes if _is_link(node)]
    is_stacked = any(clocks)  # as by flax's `replicate`: all of it has a leading axis
    wrong = []
    for path, node in _nodes(state, is_per_worker):
        for inner, leaf in _nodes(node):
            problem = _problem(numbers_of(leaf), is_per_worker(node), is_stacked)
            if problem:
                wrong.append(f"{name_of((*path, *inner))} {problem}")
    for path, link in _nodes(state, _is_link):
        # Where marks are not heeded, all of this would be said once more.
        if _is_link(link) and not wrong and _has_run(link):
            wrong += [f"{name_of(path)} {problem}" for problem in _problems(link)]
    if wrong:
        raise ValueError("; ".join(wrong))


_WAY_OUT = (
    "is not marked, and differs between workers: mark the link it belongs to, "
    "jaxcomp.per_worker(tx), if it stands before the exchange, or by jaxcomp.PerWorker "
    "what is meant to differ, as keys do; a link or a part of the model that no "
    "exchange averages lets replicas drift apart"
)
_DECLARED = (
    "is marked as each worker's own and declared the same on all of them: map the step "
    "with jaxcomp.parallel.axes(state) as in_axes and out_axes, or give all of the "
    "state a leading axis"
)
_ALONE = (
    "holds one worker's part of what is marked as each worker's own, as after "
    "flax.jax_utils.unreplicate: what the others keep is lost. Pass all of the state"
)
_ALIKE = (
    "is what each worker keeps of its own gradient, and is the same on all {count} to "
    "the bit: gradients are averaged before the exchange, or all workers get the same "
    "batch, or one worker's part was copied to all, as by unreplicate and replicate of "
    "flax. Take every other pmean or psum of gradients out of the step, give each "
    "worker a share of the batch, and save all of what is marked"
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
        is_same &= all(map(_is_one, _rows(leaf)))
    return None if is_same else _WAY_OUT


def _problems(link: DistributedState) -> list[str]:
    """What is wrong with all that workers keep."""
    marked = _marked(link.exchange)
    if not np.ndim(link.info.value.unsent_norm):
        # No axis of workers. On one device there may be one, who needs none.
        return [_ALONE] if marked and jax.device_count() > 1 else []
    floats = [x for x in marked if jnp.issubdtype(x.dtype, jnp.floating)]
    pieces = [rows for leaf in floats for rows in _rows(leaf)]
    if not all(map(_is_one, pieces)):
        return []
    # A number alone may be equal by nature, such as one that counts steps.
    kept = [rows for rows in pieces if rows[0].size > 1 and rows[0].any()]
    count = max(map(len, kept), default=0)
    return [_ALIKE.format(count=count)] if count > 1 else []


def _has_run(link: DistributedState) -> bool:
    [step] = jax.tree.leaves(link.clock)
    step = step.addressable_data(0) if isinstance(step, jax.Array) else step
    return bool(np.any(np.asarray(step)))


def _is_link(node: Any) -> bool:
    return isinstance(node, DistributedState)


def _marked(state: Tree) -> list[Any]:
    """The arrays of a state that are each worker's own."""
    marked = [x for _, x in _nodes(state, is_per_worker) if is_per_worker(x)]
    return [leaf for leaf in jax.tree.leaves(marked) if hasattr(leaf, "dtype")]


def _rows(leaf: Any) -> list[list[np.ndarray]]:
    """Of each piece of an array what the workers have, one after the other.

    A piece is a shard, where the model is cut over other devices. An array without axes
    has none.
    """
    if not leaf.ndim or not leaf.size:
        return []
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return [list(np.asarray(leaf))]
    pieces: dict[str, dict[int, np.ndarray]] = {}
    for shard in leaf.addressable_shards:
        first = shard.index[0].start or 0
        rows = pieces.setdefault(str(shard.index[1:]), {})
        rows |= {first + i: row for i, row in enumerate(np.asarray(shard.data))}
    return [list(rows.values()) for rows in pieces.values()]


def _is_one(rows: list[np.ndarray]) -> bool:
    """Whether all of them are the same, to the bit."""
    return len({row.tobytes() for row in rows}) == 1


def _nodes(tree: Tree, is_leaf: Any = None) -> list[tuple[Any, Any]]:
    """Pairs of path and node."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]

"""Marks for the state of any link that differs between workers, and their check."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import tree_flatten_with_path

from jaxcomp.core.trees import name_of, numbers_of, vary_like
from jaxcomp.core.types import PerWorker, Tree, is_per_worker
from jaxcomp.parallel.placing import with_marks
from jaxcomp.transforms.distributed import DistributedState


def per_worker(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Mark the state of a link as different on each worker.

    It is for links before `distributed` whose state depends on the local gradient, such
    as `optax.trace`, `optax.ema` or adaptive clipping. Without the mark this state is
    taken to be the same on all workers, and a checkpoint keeps that of one worker.

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
    """Refuse a state whose marks are wrong; call it after a few steps, outside jit.

    Unmarked parts have to be the same on all workers, and marked parts have to exist
    for each of them. Otherwise a checkpoint would keep one worker's part for all.
    Besides, residuals that are equal on all workers show that gradients were averaged
    before the exchange, which is refused too. It goes unnoticed where the workers'
    compressors draw different random numbers.

    Args:
      state: params, optimiser state and all else, as the mapped step returned it; the
        parts that this process holds are checked.

    Raises:
      ValueError: names each wrong part, and what to do.
    """
    nodes = tree_flatten_with_path(state, lambda x: is_per_worker(x) or _is_link(x))[0]
    clocks = [np.ndim(node.clock.step) for _, node in nodes if _is_link(node)]
    is_stacked = any(clocks)  # all leaves have a worker axis, as by flax's `replicate`
    wrong = [
        f"{_called((*path, *inner))} {problem}"
        for path, node, is_marked in with_marks(state)
        for inner, leaf in tree_flatten_with_path(node)[0]
        if (problem := _problem(numbers_of(leaf), is_marked, is_stacked))
    ]
    for path, link in tree_flatten_with_path(state, _is_link)[0]:
        # Where marks are wrong, this would report the same parts again.
        if _is_link(link) and not wrong and _has_run(link):
            wrong += [f"{_called(path)} {problem}" for problem in _problems(link)]
    if wrong:
        raise ValueError("; ".join(wrong))


def _called(path: tuple[Any, ...]) -> str:
    return name_of(path) or "the state"


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
    """What is wrong with the mark of a leaf, or None."""
    if not isinstance(leaf, jax.Array) or not leaf.size:
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
    """What is wrong with the marked state of a link."""
    kept = with_marks(link.exchange)
    marked = [x for _, x, is_marked in kept if is_marked and hasattr(x, "dtype")]
    if not np.ndim(link.info.value.unsent_norm):
        # It has no axis of workers, which is right for a single worker on one device.
        return [_ALONE] if marked and jax.device_count() > 1 else []
    floats = [x for x in marked if jnp.issubdtype(x.dtype, jnp.floating)]
    pieces = [rows for leaf in floats for rows in _rows(leaf)]
    if not all(map(_is_one, pieces)):
        return []
    # Single numbers, such as a count of steps, may be equal on all workers.
    kept = [rows for rows in pieces if rows[0].size > 1 and rows[0].any()]
    count = max(map(len, kept), default=0)
    return [_ALIKE.format(count=count)] if count > 1 else []


def _has_run(link: DistributedState) -> bool:
    [step] = jax.tree.leaves(link.clock)
    step = step.addressable_data(0) if isinstance(step, jax.Array) else step
    return bool(np.any(np.asarray(step)))


def _is_link(node: Any) -> bool:
    return isinstance(node, DistributedState)


def _rows(leaf: Any) -> list[list[np.ndarray]]:
    """For each piece of an array, the rows of the workers in their order.

    Where a model is cut over several devices of a worker, each shard is a piece. An
    array without axes has no pieces.
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
    """Whether all rows are equal to the bit."""
    return len({row.tobytes() for row in rows}) == 1

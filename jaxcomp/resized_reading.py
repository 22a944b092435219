"""Reading a checkpoint of another number of workers: what to ask for, where to put it.

Marked arrays, which have an axis of workers, are read to the host with the number of
workers that the checkpoint has. What all workers share is read as ever.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import leaves, processes, restoring
from jaxcomp.base import Tree, is_per_worker, is_report
from jaxcomp.files import CheckpointError
from jaxcomp.keys import as_keys, is_key, numbers_of, numbers_spec

__all__ = ["as_stored", "placed_like", "workers_of"]


def workers_of(like: Tree) -> int | None:
    """How many workers a state is of, over all processes; None if nothing is marked.

    Args:
      like: a state, or a tree of `jax.ShapeDtypeStruct` with shardings.
    """
    marked = [leaf for leaf, is_marked in _leaves(like) if is_marked and np.ndim(leaf)]
    return _shape(marked[0])[0] if marked else None


def as_stored(like: Tree, stored: Mapping[str, restoring.Stored]) -> Tree:
    """The state with the number of workers that a checkpoint has.

    If the numbers are equal, or nothing is marked, the result is `like` itself.

    Args:
      like: the state to be restored.
      stored: the leaves of the checkpoint, by name.
    """
    new = workers_of(like)
    named = zip(leaves.by_name(like).items(), _leaves(like), strict=True)
    found = {
        shape[0]
        for (name, leaf), (_, is_marked) in named
        if is_marked and (shape := _shape_there(name, leaf, stored))
    }
    if new is None or len(found) != 1 or found == {new}:
        return like
    [old] = found
    names = iter(leaves.by_name(like))

    def then(leaf: Any, is_marked: bool) -> Any:
        name = next(names)
        if not is_marked:
            return leaf
        spec = numbers_spec(leaf)
        shape = _shape_there(name, leaf, stored) or (old, *spec.shape[1:])
        if is_key(leaf):
            return as_keys(jnp.zeros(shape, spec.dtype), leaf)
        return np.broadcast_to(np.zeros((), spec.dtype), shape)

    return _mapped(then, like)


def _shape_there(
    name: str, leaf: Any, stored: Mapping[str, restoring.Stored]
) -> tuple[int, ...] | None:
    """What a checkpoint says; of arrays without elements it does so in their names."""
    if not leaves.is_empty(leaf):
        return stored[name].shape if name in stored else None
    start, of = name.rpartition("[")[:2]
    found = [other for other in stored if other.startswith(start + of)]
    return tuple(json.loads(found[0].removeprefix(start))) if found else None


def placed_like(state: Tree, like: Tree, where: Any) -> Tree:
    """A state whose marked arrays are placed as those of `like`.

    Args:
      state: for the number of workers of `like`; marked arrays are on the host.
      like: the state to be restored.
      where: the checkpoint, for messages.
    """
    found = [leaf for leaf, _ in _leaves(state)]
    names, wanted = list(leaves.by_name(like)), list(_leaves(like))
    if len(found) != len(wanted):
        raise CheckpointError(
            f"{where}: for {workers_of(like)} workers it has {len(found)} arrays, and "
            f"this run has {len(wanted)}"
        )

    def placed(name: str, x: Any, leaf: Any, is_marked: bool) -> Any:
        if not is_marked:
            return x
        rows, shape = np.asarray(numbers_of(x)), _shape(leaf)
        if rows.shape != shape:
            raise CheckpointError(
                f"{where}: for {workers_of(like)} workers {name} is "
                f"{list(rows.shape)}, and in this run {list(shape)}"
            )
        return _put(rows.astype(numbers_spec(leaf).dtype, copy=False), leaf)

    quadruples = zip(names, found, wanted, strict=True)
    return restoring.with_reports(
        like, [placed(name, x, *pair) for name, x, pair in quadruples]
    )


def _put(rows: np.ndarray, like: Any) -> Any:
    """An array on the devices of `like`, or on the host."""
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return rows
    if processes.is_stack(sharding):
        first = jax.process_index() * like.shape[0]
        put = jax.device_put(rows[first : first + like.shape[0]], sharding)
    elif not getattr(like, "committed", True):
        put = jnp.asarray(rows)
    elif is_key(like):
        put = jax.device_put(rows, numbers_spec(like).sharding)
    else:
        put = jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
    return as_keys(put, like)


def _shape(like: Any) -> tuple[int, ...]:
    """The shape of a leaf, as integers and of all processes."""
    if processes.is_stack(getattr(like, "sharding", None)):
        return tuple(processes.stacked_spec(numbers_spec(like)).shape)
    return tuple(numbers_spec(like).shape)


def _nodes(tree: Tree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda n: is_per_worker(n) or is_report(n))


def _leaves(tree: Tree) -> Iterator[tuple[Any, bool]]:
    """The leaves that a checkpoint holds, in the order of `by_name`; whether marked."""
    for node in _nodes(tree):
        for leaf in jax.tree.leaves(node, is_leaf=is_report):
            if not is_report(leaf):
                yield leaf, is_per_worker(node)


def _mapped(change: Any, tree: Tree) -> Tree:
    """The tree with `change(leaf, whether it is marked)`; reports stay."""

    def of(node: Any) -> Any:
        if is_report(node):
            return node
        return jax.tree.map(
            lambda x: x if is_report(x) else change(x, is_per_worker(node)),
            node,
            is_leaf=is_report,
        )

    return jax.tree.map(of, tree, is_leaf=lambda n: is_per_worker(n) or is_report(n))

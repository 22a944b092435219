"""Sparse reduce: chosen elements go to the worker that owns their place, and back."""

import functools
import math
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import collectives, compressors
from jaxcomp.base import (
    Array,
    Averaged,
    Axis,
    Compressor,
    Exchange,
    PerWorker,
    Spec,
    State,
    Tree,
)
from jaxcomp.bounds import leaf_choices, leaf_contractions, worst
from jaxcomp.exchanges._common import compress_own, with_method
from jaxcomp.exchanges._rows import halves, own_row, reduce_rows
from jaxcomp.infos import figure_names, measure
from jaxcomp.scope import Group, Leaf, Plan, groups_of, lift, to_tree, to_vectors
from jaxcomp.scope.plans import joined_spec
from jaxcomp.specs import Call, Pipe, Range, Shown, SpecError, method
from jaxcomp.trees import cast_like, spec_of, wide_spec

__all__ = ["sparse_reduce"]

_BLOCK = 16  # neighbours that one worker owns: a cache line
_GOLDEN = 2654435769  # of 2^32, the golden ratio: its multiples fill a circle evenly
_TINY = 1e-45  # the smallest float32: all but zeros reach it


@method(given=2)
def sparse_reduce(
    name: str,
    plan: Plan,
    axis: Axis,
    slack: Annotated[float, Range(least=1)] = 1.25,
    values: Annotated[
        str | Call | Pipe | Compressor,
        Shown(lambda values, _: repr(compressors.make(values).name)),
    ] = "none",
) -> Exchange:
    """All-reduce of chosen elements; a worker's traffic does not grow with the workers.

    The plan's compressor chooses k elements anywhere in the tree. Each worker owns one
    of every N blocks of places, so that each owner gets about k/N of them; there is
    room for c = slack k / N, and of more the largest go. The owner adds what arrives
    and sends the c largest of its sums to all. Each worker hands over about 2 slack k
    elements, and receives as many. What found no room counts as not sent: a memory
    keeps it, and `no_room` tells how many of this worker's elements it was. Tensors
    that the plan sends without loss are averaged as they are, by an all-reduce.

    Args:
      plan: which tensors are compressed as one vector, and how: a sparsifier.
      axis: the mapped axis.
      slack: room for c elements, in units of k / N.
      values: a compressor of the values, such as "cast" or "qsgd(levels=127)".

    References:
      Renggli et al., SparCML: High-Performance Sparse Communication for Machine
      Learning, arXiv:1802.08021, 2019. Li and Hoefler, Near-Optimal Sparse Allreduce
      for Distributed Deep Learning, arXiv:2201.07598, 2022.
    """
    sparse = _without_dense(plan)
    codec = lift(sparse)
    coder = compressors.make(values)

    def init(tree: Tree) -> State:
        spec = spec_of(tree)
        groups = groups_of(sparse, spec)
        elements = sum(joined_spec(group).size for group in groups)
        if not groups and any(leaf.size for leaf in jax.tree.leaves(spec)):
            message = (
                f"every tensor is sent dense by {codec.name!r}, so that sparse_reduce "
                "has nothing to choose; use exact"
            )
            raise SpecError(message)
        if codec.support(spec) > elements / 2:
            message = (
                f"sparse_reduce moves chosen elements, and {codec.name!r} chooses more "
                f"than half of these {elements}; use two_phase"
            )
            raise SpecError(message)
        return PerWorker(codec.init(spec))

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec, wide = spec_of(tree), wide_spec(spec_of(tree))
        groups, count = groups_of(sparse, tree), collectives.size(axis)
        choice_key, key = jax.random.split(key)
        payload, state = compress_own(codec, tree, state, choice_key, axis)
        vectors = to_vectors(codec.decompress(payload, wide), groups)
        borders = np.cumsum([v.size for v in vectors])
        rows = _deal(jnp.concatenate(vectors), count)
        room = math.ceil(codec.support(spec) * slack / count)
        message = _message(room, rows.shape[1], coder)
        held = jnp.zeros_like(rows[0])
        reduced = reduce_rows(rows, message, held, axis, key)

        leaves, structure = jax.tree.flatten(tree)
        chosen = {leaf.place for group in groups for leaf in group.leaves}
        dense = [i for i in range(len(leaves)) if i not in chosen]
        uncompressed = [leaves[i] for i in dense]
        averaged = collectives.mean_of_all(uncompressed, axis)

        def restored(rows: Array, rest: list[Array]) -> Tree:
            """The tree of what was dealt out and of what was not."""
            parts = jnp.split(_collect(rows, borders[-1]), borders[:-1])
            result = jax.tree.leaves(to_tree(parts, groups, wide))
            for i, x in zip(dense, rest, strict=True):
                result[i] = x
            return cast_like(jax.tree.unflatten(structure, result), spec)

        mean = restored(reduced.mean, averaged)
        sent = restored(reduced.first - own_row(reduced.missing, axis), uncompressed)
        info = measure(tree, sent, codec, payload)
        turned_away = _turned_away(rows, message.support(spec_of(held)))
        info = info._replace(extra={**info.extra, "no_room": turned_away})
        return Averaged(mean, sent, state, info, restored(reduced.first, uncompressed))

    def contraction(spec: Spec) -> list[float | None]:
        # What finds no room is charged whole, and of chosen elements of the gradient
        # it is a part of what was given. Values that are rounded on the way, by the
        # plan or by `values`, add their own error: then that has to be bounded.
        most = max(1, math.ceil(codec.support(spec) * slack))
        rooms = [jax.ShapeDtypeStruct((n,), jnp.float32) for n in halves(most)]
        of_values = worst(coder.contraction(room) for room in rooms)

        def of_group(compressor: Compressor, vector: Spec) -> float | None:
            delta = compressor.contraction(vector)
            if delta == 1:
                return 1.0
            return None if worst([delta, of_values]) is None else 0.0

        return leaf_contractions(plan, spec, of=of_group)

    return Exchange(
        with_method(name, codec.name),
        init=init,
        average=average,
        axis=axis,
        figures=(*figure_names(codec), "no_room"),
        contraction=contraction,
        chooses=functools.partial(leaf_choices, plan),
    )


def _without_dense(plan: Plan) -> Plan:
    """The plan of the tensors of which something is lost."""

    def loses(group: Group) -> bool:
        return group.compressor.contraction(joined_spec(group)) != 1

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [group for group in plan.groups(leaves) if loses(group)]

    return plan._replace(groups=groups)


def _turned_away(rows: Array, room: int) -> Array:
    """How many elements are beyond the room of their row."""
    held = jnp.count_nonzero(rows, axis=1)
    return jnp.sum(jnp.maximum(held - room, 0)).astype(jnp.float32)


def _turns(blocks: int, count: int) -> Array:
    """For each turn of `count` blocks, by how many owners it is rotated.

    Without it a stride of a layout, such as that of an output channel, may meet one
    owner again and again.

    Example:
        >>> _turns(6, 4)
        Array([0, 2, 0, 3, 1, 0], dtype=uint32)
    """
    turn = jax.lax.iota(jnp.uint32, blocks)
    angle = (turn * np.uint32(_GOLDEN)) >> np.uint32(16)
    return (angle * np.uint32(count)) >> np.uint32(16)


def _rotated(blocks: Array, turns: Array) -> Array:
    """[turns, N, block] with each turn rotated by its own number of owners."""
    count = blocks.shape[1]
    owners = jnp.arange(count, dtype=jnp.uint32)[None] + np.uint32(count)
    places = (owners - turns[:, None]) % np.uint32(count)
    return jnp.take_along_axis(blocks, places[:, :, None].astype(jnp.int32), axis=1)


def _deal(vector: Array, count: int) -> Array:
    """Blocks of neighbours in turn to `count` rows, with zeros at the end.

    Large elements stand together; dealt out, each owner gets its share of them.

    Example:
        >>> _deal(jnp.arange(1, 65), 2)[:, 15:18]
        Array([[16, 49, 50],
               [32, 33, 34]], dtype=int32)
    """
    blocks = max(1, -(-vector.size // (_BLOCK * count)))
    padded = jnp.pad(vector, (0, blocks * count * _BLOCK - vector.size))
    dealt = _rotated(padded.reshape(blocks, count, _BLOCK), _turns(blocks, count))
    return dealt.swapaxes(0, 1).reshape(count, -1)


def _collect(rows: Array, size: int) -> Array:
    """The inverse of `_deal`."""
    count = rows.shape[0]
    dealt = rows.reshape(count, -1, _BLOCK).swapaxes(0, 1)
    back = np.uint32(count) - _turns(dealt.shape[0], count)
    return _rotated(dealt, back).reshape(-1)[:size]


def _message(room: int, width: int, values: Compressor) -> Compressor:
    """What an owner is sent and sends: up to `room` elements that are not zero."""
    sparse = compressors.make(f"threshold(v={_TINY}, cap={min(1.0, room / width)!r})")
    return sparse if values.name == "none" else compressors.compose(sparse, values)

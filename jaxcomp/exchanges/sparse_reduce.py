"""Sparse reduce: an all-reduce of chosen elements, summed by owners of places."""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import compressors
from jaxcomp.core import types
from jaxcomp.core.specs import Call, Pipe, Range, Shown, SpecError, method
from jaxcomp.core.trees import cast_like, spec_of, wide_spec, widen
from jaxcomp.core.types import Array, Averaged, Axis, Compressor, Exchange, Spec, Tree
from jaxcomp.exchanges._common import (
    compress_own,
    figure_names,
    measure,
    with_method,
)
from jaxcomp.exchanges._rows import halves, in_own_row, reduce_rows
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift, plans
from jaxcomp.scope.contraction import leaf_choices, leaf_contractions, split_lossless

_BLOCK = 16  # neighbouring elements with one owner: a cache line of float32
_GOLDEN = 2654435769  # golden ratio * 2^32: its multiples modulo 2^32 are spread evenly
_TINY = 1e-45  # the smallest float32 above 0, a threshold that keeps all but zeros


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
    of every N blocks of places, so that about k / N of these elements belong to each
    owner. A message to an owner has room for c = slack k / N elements; if there are
    more, the largest are sent. The owner adds what arrives and sends the c largest of
    its sums to all. Each worker sends and receives about 2 slack k elements. Elements
    without room count as not sent: a memory keeps them, and `no_room` is their number
    on this worker. Tensors that the plan sends without loss are averaged by an
    all-reduce.

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
    # Tensors that are sent dense are averaged without the codec.
    lossy = plan._replace(groups=lambda leaves: split_lossless(plan.groups(leaves))[1])
    codec = lift(lossy)
    way = _SparseReduce(plan, lossy, axis, codec, slack, compressors.make(values))
    return Exchange(
        with_method(name, codec.name),
        init=way.init,
        average=way.average,
        axis=axis,
        figures=(*figure_names(codec), "no_room"),
        contraction=way.contraction,
        chooses=functools.partial(leaf_choices, plan),
    )


class _SparseReduce(NamedTuple):
    """The functions of the exchange; `sparse_reduce` explains its arguments."""

    plan: Plan
    lossy: Plan  # without the tensors that are sent dense
    axis: Axis
    codec: Compressor
    slack: float
    values: Compressor

    def init(self, tree: Tree) -> types.State:
        spec, codec = spec_of(tree), self.codec
        groups = plans.groups_of(self.lossy, spec)
        elements = sum(plans.joined_spec(group).size for group in groups)
        if not groups and any(leaf.size for leaf in jax.tree.leaves(spec)):
            raise SpecError(
                f"every tensor is sent dense by {codec.name!r}, so that sparse_reduce "
                "has nothing to choose; use exact"
            )
        if codec.support(spec) > elements / 2:
            raise SpecError(
                f"sparse_reduce moves chosen elements, and {codec.name!r} chooses more "
                f"than half of these {elements}; use two_phase"
            )
        return types.PerWorker(codec.init(spec))

    def average(self, tree: Tree, state: types.State, key: Array) -> Averaged:
        axis, spec, wide = self.axis, spec_of(tree), wide_spec(spec_of(tree))
        dense_groups, groups = split_lossless(plans.groups_of(self.plan, tree))
        count = collectives.size(axis)
        choice_key, key = jax.random.split(key)
        key = jax.random.fold_in(key, groups[0].number)  # parts of a tree draw apart
        payload, state = compress_own(self.codec, tree, state, choice_key, axis)
        vectors = plans.to_vectors(self.codec.decompress(payload, wide), groups)
        borders = np.cumsum([v.size for v in vectors])
        rows = _deal(vectors, count)
        capacity = math.ceil(self.codec.support(spec) * self.slack / count)
        message = _message(capacity, rows.shape[1], self.values)
        held = jnp.zeros_like(rows[0])
        reduced = reduce_rows(rows, message, held, axis, key)

        def restored(rows: Array, rest: Sequence[Array]) -> Tree:
            """The tree of compressed vectors, in rows, and of dense ones."""
            parts = jnp.split(_collect(rows, borders[-1]), borders[:-1])
            return plans.to_tree([*parts, *rest], [*groups, *dense_groups], wide)

        dense = plans.to_arrays(tree, dense_groups)
        means = collectives.mean_of_all(list(dense), axis)
        mean = cast_like(restored(reduced.mean, means), spec)
        sent = restored(reduced.first - in_own_row(reduced.missing, axis), dense)
        own_sent = restored(reduced.first, dense)
        missing = jax.tree.map(jnp.subtract, widen(tree), sent)
        info = measure(tree, None, self.codec, payload, missing=missing)
        overflow = message.figures[0]  # those of `values` come later
        beyond = jax.vmap(lambda sent: overflow.of(sent, spec_of(held)))(reduced.sent)
        info = info._replace(extra={**info.extra, "no_room": jnp.sum(beyond)})
        sent = cast_like(sent, spec)
        return Averaged(mean, sent, state, info, own_sent, missing)

    def contraction(self, spec: Spec) -> list[float | None]:
        # Elements without room are part of what was given, so they add no error of
        # their own. Values that the plan or `values` rounds do, and that has to be
        # bounded.
        most = max(1, math.ceil(self.codec.support(spec) * self.slack))
        sent = [jax.ShapeDtypeStruct((n,), jnp.float32) for n in halves(most)]
        of_values = types.worst(self.values.contraction(vector) for vector in sent)

        def of_group(compressor: Compressor, vector: Spec) -> float | None:
            delta = compressor.contraction(vector)
            if delta == 1:
                return 1.0
            return None if types.worst([delta, of_values]) is None else 0.0

        return leaf_contractions(self.plan, spec, of=of_group)


def _turns(turns: int, count: int) -> Array:
    """[turns, 1]: by how many owners each run of `count` blocks is rotated.

    Large elements may stand at regular distances, such as those of an output channel.
    Without rotation all of them might belong to one owner.

    Example:
      >>> _turns(6, 4)[:, 0]
      Array([0, 2, 0, 3, 1, 0], dtype=uint32)
    """
    turn, _ = _grid(turns, count)
    angle = (turn * np.uint32(_GOLDEN)) >> np.uint32(16)
    return (angle * np.uint32(count)) >> np.uint32(16)


def _deal(vectors: Sequence[Array], count: int) -> Array:
    """Blocks of neighbouring elements, given to `count` rows in turn; zeros at the end.

    Large elements often stand together. So each owner gets its share of them.

    Example:
      >>> _deal([jnp.arange(1, 33), jnp.arange(33, 65)], 2)[:, 15:18]
      Array([[16, 49, 50],
             [32, 33, 34]], dtype=int32)
    """
    size = sum(v.size for v in vectors)
    turns = max(1, -(-size // (_BLOCK * count)))
    absent = jnp.zeros(turns * count * _BLOCK - size, vectors[0].dtype)
    blocks = jnp.concatenate([*vectors, absent]).reshape(-1, _BLOCK)
    turn, owner = _grid(turns, count)
    # Of each owner, the place of its block in the turn. Whole blocks are looked up, so
    # that one pass both rotates and deals.
    place = (owner + np.uint32(count) - _turns(turns, count)) % np.uint32(count)
    return _blocks_at(blocks, (turn * np.uint32(count) + place).T).reshape(count, -1)


def _collect(rows: Array, size: int) -> Array:
    """The inverse of `_deal`, as one vector."""
    count = rows.shape[0]
    blocks = rows.reshape(-1, _BLOCK)
    turns = blocks.shape[0] // count
    turn, place = _grid(turns, count)
    owner = (place + _turns(turns, count)) % np.uint32(count)
    return _blocks_at(blocks, owner * np.uint32(turns) + turn).reshape(-1)[:size]


def _grid(turns: int, count: int) -> tuple[Array, Array]:
    """[turns, 1] the number of each turn, and [1, count] that of each of its blocks."""
    turn = jax.lax.iota(jnp.uint32, turns)[:, None]
    return turn, jax.lax.iota(jnp.uint32, count)[None]


def _blocks_at(blocks: Array, places: Array) -> Array:
    return blocks.at[places].get(mode="promise_in_bounds")


def _message(capacity: int, width: int, values: Compressor) -> Compressor:
    """The compressor of messages to and from owners: so many elements, none zero."""
    cap = min(1.0, capacity / width)
    sparse = compressors.make(f"threshold(v={_TINY}, cap={cap!r})")
    return sparse if values.name == "none" else compressors.compose(sparse, values)

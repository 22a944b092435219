"""Sparse reduce: chosen elements go to the worker that owns their place, and back."""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxcomp import compressors
from jaxcomp.base import (
    Array,
    Averaged,
    Axis,
    Compressor,
    Exchange,
    PerWorker,
    State,
    Tree,
    cast_like,
    spec_of,
    wide_spec,
)
from jaxcomp.exchanges import collectives
from jaxcomp.exchanges.common import (
    compress_own,
    figure_names,
    measure,
    with_method,
)
from jaxcomp.exchanges.rows import own_row, reduce_rows
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import Call, canonical

__all__ = ["sparse_reduce"]

_BLOCK = 16  # neighbours that one worker owns: a cache line
_TINY = 1e-45  # the smallest float32: all but zeros reach it


def sparse_reduce(
    plan: Plan, axis: Axis, slack: float = 1.25, values: str | Call = "none"
) -> Exchange:
    """All-reduce of chosen elements; a worker's traffic does not grow with the workers.

    The plan's compressor chooses k elements anywhere in the tree. Worker j owns every
    N-th block of places, so that each owner gets about k/N of them; there is room for
    c = slack k / N, and of more the largest go. The owner adds what arrives and sends
    the c largest of its sums to all. Each worker hands over about 2 slack k elements,
    and receives as many. What found no room counts as not sent: a memory keeps it.

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
    if not isinstance(slack, int | float) or not 1 <= slack < math.inf:
        raise ValueError(f"slack is a number of at least 1, not {slack!r}")
    codec = lift(plan)
    coder = compressors.make(values)

    def init(tree: Tree) -> State:
        spec = spec_of(tree)
        elements = sum(leaf.size for leaf in jax.tree.leaves(spec))
        if codec.support(spec) > elements / 2:
            message = (
                f"sparse_reduce moves chosen elements, and {codec.name!r} chooses more "
                f"than half of these {elements}; use two_phase"
            )
            raise ValueError(message)
        return PerWorker(codec.init(spec))

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec, wide = spec_of(tree), wide_spec(spec_of(tree))
        count = collectives.size(axis)
        choice_key, key = jax.random.split(key)
        payload, state = compress_own(codec, tree, state, choice_key, axis)
        vector, to_tree = ravel_pytree(codec.decompress(payload, wide))
        rows = _deal(vector, count)
        room = math.ceil(codec.support(spec) * slack / count)
        held = jnp.zeros_like(rows[0])
        reduced = reduce_rows(rows, _message(room, held.size, coder), held, axis, key)
        missing = own_row(reduced.missing, axis)
        sent = to_tree(_collect(reduced.first - missing, vector.size))
        mean = to_tree(_collect(reduced.mean, vector.size))
        info = measure(tree, sent, codec, payload)
        return Averaged(cast_like(mean, spec), cast_like(sent, spec), state, info)

    shown = canonical(sparse_reduce, slack=slack, values=coder.name)
    return Exchange(
        with_method(shown, codec.name),
        init=init,
        average=average,
        axis=axis,
        figures=figure_names(codec),
    )


def _deal(vector: Array, count: int) -> Array:
    """Blocks of neighbours in turn to `count` rows, with zeros at the end.

    Large elements stand together; dealt out, each owner gets its share of them.

    Example:
        >>> _deal(jnp.arange(40), 2)[:, 14:20]
        Array([[14, 15, 32, 33, 34, 35],
               [30, 31,  0,  0,  0,  0]], dtype=int32)
    """
    blocks = max(1, -(-vector.size // (_BLOCK * count)))
    padded = jnp.pad(vector, (0, blocks * count * _BLOCK - vector.size))
    return padded.reshape(blocks, count, _BLOCK).swapaxes(0, 1).reshape(count, -1)


def _collect(rows: Array, size: int) -> Array:
    """The inverse of `_deal`."""
    count = rows.shape[0]
    blocks = rows.reshape(count, -1, _BLOCK).swapaxes(0, 1)
    return blocks.reshape(-1)[:size]


def _message(room: int, width: int, values: Compressor) -> Compressor:
    """What an owner is sent and sends: up to `room` elements that are not zero."""
    sparse = compressors.make(f"threshold(v={_TINY}, cap={min(1.0, room / width)!r})")
    return sparse if values.name == "none" else compressors.compose(sparse, values)

"""Vectors in rows, one for each worker: what `two_phase` and `sparse_reduce` share."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.trees import spec_of, wide_spec
from jaxcomp.core.types import Array, Axis, Compressor, Payload, Tree
from jaxcomp.exchanges._common import gather_trees, is_sparse, row_spec, swap_rows
from jaxcomp.parallel import collectives


class Reduced(NamedTuple):
    """What `reduce_rows` returns; trees with leaves [N, m] where nothing is said."""

    mean: Tree  # identical on every worker
    first: Tree  # what this worker's messages to the owners decode to
    missing: Tree  # [m]: the sum of this worker's row, minus what its answer decodes to
    sent: Payload  # this worker's messages to the owners, with an axis of N in front


def to_rows(vector: Array, count: int) -> Array:
    """A vector as `count` rows of equal length, with zeros at the end.

    Example:
      >>> to_rows(jnp.arange(5), 2)
      Array([[0, 1, 2],
             [3, 4, 0]], dtype=int32)
    """
    width = -(-vector.size // count)
    padded = jnp.pad(vector, (0, width * count - vector.size))
    return padded.reshape(count, width)


def widths(size: int) -> set[int]:
    """Every length that `to_rows` may give to a vector: ceil(size / N) for all N.

    There are about 2 sqrt(size) of them: for N below the root of the size there are few
    N, and for N above it the lengths are below the root.

    Example:
      >>> sorted(widths(10))
      [1, 2, 3, 4, 5, 10]
    """
    root = math.isqrt(size)
    return {*range(1, root + 1), *(-(-size // n) for n in range(1, root + 2))}


def halves(size: int) -> list[int]:
    """The lengths of rows for 1, 2, 4, ... workers, a subset of all `widths`.

    Example:
      >>> halves(10)
      [10, 5, 3, 2, 1]
    """
    return [-(-size // 2**i) for i in range((size - 1).bit_length() + 1)]


def in_own_row(row: Array, axis: Axis) -> Array:
    """A matrix [N, m] of zeros, except for this worker's own row.

    Args:
      row: [m].
      axis: over whom; N is its size.

    Example:
      >>> step = lambda x: in_own_row(x[None], "workers")
      >>> jax.vmap(step, axis_name="workers")(jnp.array([5.0, 7.0])).tolist()
      [[[5.0], [0.0]], [[0.0], [7.0]]]
    """
    owners = jnp.arange(collectives.size(axis), dtype=jnp.int32)
    is_own = owners[:, None] == collectives.index(axis).astype(jnp.int32)
    # A choice, which is part of whatever reads it, where a scatter would be a pass.
    return jnp.where(is_own, row[None], jnp.zeros((), row.dtype))


def reduce_rows(
    rows: Tree, codec: Compressor, held: Tree, axis: Axis, key: Array
) -> Reduced:
    """The mean over the workers, where each worker sums one row for all.

    Row j of every worker is compressed and sent to worker j, its owner, by one
    all-to-all. The owner decodes and adds the rows, compresses the sum and sends it to
    all workers, by one all-gather.

    Args:
      rows: leaves [N, m]; row j belongs to worker j.
      codec: compressor of trees with leaves [m], without state.
      held: leaves [m]; added to the sum of this worker's row.
      axis: the mapped axis.
      key: the same on every worker.
    """
    count, place = collectives.size(axis), collectives.index(axis)
    own_key = jax.random.fold_in(key, place)
    first_key, second_key = jax.random.split(own_key)
    narrow = row_spec(rows)
    wide = wide_spec(narrow)

    def compress(row: Tree, key: Array) -> Tree:
        return codec.compress(row, codec.init(spec_of(row)), key)[0]

    each = _each_row(codec, narrow)
    keys = jax.random.split(first_key, count)
    payloads = each(lambda pair: compress(*pair), (rows, keys))
    arrived = swap_rows(payloads, axis)
    total = jax.tree.map(jnp.add, codec.decompress_sum(arrived, narrow), held)
    if is_sparse(codec, narrow):
        total = jax.tree.map(_all_or_none, total)

    def decoded(payload: Payload) -> Tree:
        return codec.decompress(payload, wide)

    # Owners answer with sums, not with means: an element of the sum that the answer
    # holds in full then has a loss of exactly 0, which a division would round.
    answer = compress(total, second_key)
    answers = each(decoded, gather_trees(answer, axis))
    mean = jax.tree.map(lambda a: a / count, answers)
    missing = jax.tree.map(jnp.subtract, total, decoded(answer))
    return Reduced(mean, each(decoded, payloads), missing, payloads)


def _all_or_none(row: Array) -> Array:
    """The row, all NaN if a part is: the answer may hold other places than messages."""
    return jnp.where(jnp.all(jnp.isfinite(row)), row, jnp.nan)


def _each_row(
    codec: Compressor, row: Tree
) -> Callable[[Callable[..., Tree], Tree], Tree]:
    """How a function of one row is applied to all.

    Where all elements of a row are sent, the rows are one batch. Selections take one
    row after the other: a batch of them is slower, because it does for all rows what
    few of them need, and holds the intermediates of all in memory at once.
    """
    if is_sparse(codec, row):
        return jax.lax.map
    return lambda function, rows: jax.vmap(function)(rows)

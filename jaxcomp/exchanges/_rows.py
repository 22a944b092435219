"""Vectors in rows, one for each worker that owns it; what the two-phase ways share."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp import collectives
from jaxcomp.base import Array, Axis, Compressor, Tree
from jaxcomp.coding.message import fuse, split
from jaxcomp.trees import spec_of, wide_spec

__all__ = ["Reduced", "halves", "own_row", "reduce_rows", "to_rows", "widths"]


class Reduced(NamedTuple):
    """What `reduce_rows` returns. Trees with leaves [N, m] but for `missing`."""

    mean: Tree  # identical on every worker
    first: Tree  # what this worker's messages to the owners decode to
    missing: Tree  # [m] of the own row: what the owner had to send and did not


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

    About 2 sqrt(size) of them: few N are below the root, few lengths are.

    Example:
        >>> sorted(widths(10))
        [1, 2, 3, 4, 5, 10]
    """
    root = math.isqrt(size)
    return {*range(1, root + 1), *(-(-size // n) for n in range(1, root + 2))}


def halves(size: int) -> list[int]:
    """The lengths of rows for 1, 2, 4, ... workers: a few of all `widths`.

    Example:
        >>> halves(10)
        [10, 5, 3, 2, 1]
    """
    return [-(-size // 2**i) for i in range((size - 1).bit_length() + 1)]


def own_row(row: Array, axis: Axis) -> Array:
    """[N, m] zeros but for this worker's own row.

    Args:
      row: [m].
      axis: over whom; N is its size.

    Example:
        >>> step = lambda x: own_row(x[None], "workers")
        >>> jax.vmap(step, axis_name="workers")(jnp.array([5.0, 7.0])).tolist()
        [[[5.0], [0.0]], [[0.0], [7.0]]]
    """
    zeros = jnp.zeros((collectives.size(axis), row.size), row.dtype)
    return zeros.at[collectives.index(axis)].set(row)


def reduce_rows(
    rows: Tree, codec: Compressor, held: Tree, axis: Axis, key: Array
) -> Reduced:
    """Mean over the workers, each of which sums one row: compressed twice.

    Row j of every worker goes to worker j, which decodes and adds them, compresses the
    sum and sends it to all. One all-to-all and one all-gather.

    Args:
      rows: leaves [N, m]; row j belongs to worker j.
      codec: compressor of trees with leaves [m], without state.
      held: leaves [m]; added to the sum of the own row.
      axis: the mapped axis.
      key: the same on every worker.
    """
    count, place = collectives.size(axis), collectives.index(axis)
    own_key = jax.random.fold_in(key, place)
    first_key, second_key = jax.random.split(own_key)
    narrow = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    wide = wide_spec(narrow)

    def compress(row: Tree, key: Array) -> Tree:
        return codec.compress(row, codec.init(spec_of(row)), key)[0]

    # One row after the other: batched selections and rotations are slower, and hold
    # the intermediates of all rows at once.
    keys = jax.random.split(first_key, count)
    payloads = jax.lax.map(lambda pair: compress(*pair), (rows, keys))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), payloads)
    received = collectives.swap(jax.vmap(fuse)(payloads), axis)
    arrived = jax.vmap(lambda words: split(words, one))(received)
    due = jax.tree.map(jnp.add, codec.decompress_sum(arrived, narrow), held)

    answer = compress(due, second_key)
    messages = collectives.gather(fuse(answer), axis)

    def decoded(words: Array) -> Tree:
        return codec.decompress(split(words, spec_of(answer)), wide)

    # Sums are answered, not means: what is answered in full is then missing by exactly
    # nothing, with no rounding of a division in between.
    answers = jax.lax.map(decoded, messages)
    first = jax.lax.map(lambda payload: codec.decompress(payload, wide), payloads)
    missing = jax.tree.map(lambda d, a: d - a[place], due, answers)
    mean = jax.tree.map(lambda a: a / count, answers)
    return Reduced(mean, first, missing)

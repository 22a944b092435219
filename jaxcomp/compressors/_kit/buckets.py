"""Buckets: neighbouring elements that share a scale, and rounding within them.

This file is not a method. Its functions are written for long vectors: they neither copy
the vector nor store a second array of its size. docs/architecture.md has the
measurements behind this.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.magnitudes import magnitude_bits
from jaxcomp.core.types import Array

_SHORT = 1 << 16  # shorter vectors are reduced in one piece, which compiles faster
_SYMBOLS = (jnp.uint8, jnp.uint16, jnp.uint32)


def rows(size: int, bucket: int | None) -> int:
    """Number of buckets; None takes all elements as one.

    Example:
      >>> rows(1000, 512), rows(1000, None)
      (2, 1)
    """
    return -(-size // (bucket or size))


def counts(size: int, bucket: int | None) -> Array:
    """Elements of each bucket in float32; the last one may be shorter.

    Example:
      >>> counts(1000, 512)
      Array([512., 488.], dtype=float32)
    """
    width = np.uint32(bucket or size)
    before = jax.lax.iota(jnp.uint32, rows(size, bucket)) * width
    return jnp.minimum(np.uint32(size) - before, width).astype(jnp.float32)


def peaks(flat: Array, bucket: int | None) -> Array:
    """Largest magnitude of each bucket in float32.

    NaN counts as larger than infinity, and infinity as larger than all numbers.

    Example:
      >>> peaks(jnp.array([1.0, -3.0, 2.0]), 2)
      Array([3., 2.], dtype=float32)
    """
    # The maximum of integers, because XLA's maximum of floats loses a NaN in a long
    # vector, and stores all magnitudes first.
    bits = _reduce(
        flat.size,
        bucket,
        lambda a, b: magnitude_bits(flat[a:b]),
        lambda part: jnp.max(part, axis=1),
    )
    return jax.lax.bitcast_convert_type(bits, flat.dtype).astype(jnp.float32)


def norms(flat: Array, bucket: int | None, scales: Array) -> Array:
    """Euclidean norm of each bucket times its scale, which is positive.

    Example:
      >>> norms(jnp.array([3.0, -4.0, 2.0]), 2, jnp.array([1.0, 2.0]))
      Array([5., 4.], dtype=float32)
    """

    def squares(start: int, stop: int) -> Array:
        # Of |x|: if this were the same product as in `to_levels`, XLA would store it.
        part = jnp.abs(flat[start:stop].astype(jnp.float32))
        return jnp.square(part * spread(scales, bucket, stop)[start:])

    def add(a: Array, b: Array) -> Array:
        # The maximum changes no sum. Without it XLA's reduction would store all terms.
        return jnp.maximum(a + b, np.float32(0))

    def sums(part: Array) -> Array:
        return jax.lax.reduce(part, np.float32(0), add, (1,))

    return jnp.sqrt(_reduce(flat.size, bucket, squares, sums))


def spread(values: Array, bucket: int | None, size: int) -> Array:
    """For each of `size` elements the value of its bucket.

    Elements beyond the last bucket get the value of the last bucket.

    Example:
      >>> spread(jnp.array([1.0, 2.0]), 2, 3)
      Array([1., 1., 2.], dtype=float32)
    """
    if bucket is None or values.size == 1:
        return jnp.broadcast_to(values[0], (size,))
    if size > values.size * bucket:
        places = jax.lax.iota(jnp.uint32, size) // np.uint32(bucket)
        return values.at[places].get(mode="clip")
    return jnp.broadcast_to(values[:, None], (values.size, bucket)).reshape(-1)[:size]


def factors(peaks: Array) -> Array:
    """A power of two for each bucket by which its elements get squares in range.

    In float32 the square of 1e20 overflows, and 1 / 1e38 underflows. A bucket with NaN
    or infinity gets the factor NaN, so that all of it decodes to NaN.
    """
    powers = jnp.where(peaks < 2.0**-40, 2.0**-87, 1)
    powers = jnp.where(peaks > 2.0**40, 2.0**87, powers)
    # XLA repeats cheap operations on a bucket for each of its elements, which also
    # reads their operands again and is slow. It does not repeat divisions.
    return 1 / jnp.where(jnp.isfinite(peaks), powers, jnp.nan)


def largest(dtype: Any) -> float:
    """The largest number of a dtype, minus a margin for rounding of level * unit."""
    largest = min(float(jnp.finfo(dtype).max), float(jnp.finfo(jnp.float32).max))
    return largest * (1 - 2.0**-22)


def to_levels(
    flat: Array,
    bucket: int | None,
    scales: Array,
    units: Array,
    levels: int,
    draws: Array | None,
) -> Array:
    """Each element as a multiple of its unit, plus `levels`.

    Args:
      flat: [n] the vector, or the vector that `complete` made of it.
      bucket: number of elements that share a unit; None for all.
      scales: [buckets] powers of two by which the elements are multiplied first.
      units: [buckets] units of the scaled elements; a unit of zero gives zeros.
      levels: the largest multiple. Rounding of the units may give larger ones, which
        are clipped.
      draws: as in `round_to`.

    Returns:
      [n] unsigned integers from 0 to 2 * levels.
    """
    inverse = 1 / jnp.where(units > 0, units, jnp.inf)
    x = flat.astype(jnp.float32) * spread(scales, bucket, flat.size)
    x = x * spread(inverse, bucket, flat.size)
    symbol = next(t for t in _SYMBOLS if 2 * levels <= jnp.iinfo(t).max)
    return (round_to(x, levels, draws) + levels).astype(symbol)


def round_to(x: Array, levels: int, draws: Array | None) -> Array:
    """x rounded to whole numbers from -levels to levels.

    Stochastic rounding goes up with a probability equal to the fraction, up to 2^-24,
    the resolution of the random numbers. Rounding to the nearest takes ties to even. A
    NaN becomes some number here; the scale of its bucket is NaN.

    Args:
      x: [n] float32.
      levels: larger magnitudes are clipped to this one.
      draws: [n] uniform random numbers in [0, 1), from `noise`; None rounds to the
        nearest.

    Example:
      >>> round_to(jnp.array([0.6, -2.0, 9.0]), 3, None)
      Array([ 1., -2.,  3.], dtype=float32)
    """
    if draws is None:
        level = jnp.round(x)
    else:
        level = jnp.floor(x)
        is_up = draws < x - level
        level += jnp.where(is_up, np.float32(1), np.float32(0))
    level = jnp.where(level < levels, level, levels)
    return jnp.where(level > -levels, level, -levels)


def from_levels(symbols: Array, bucket: int | None, units: Array, levels: int) -> Array:
    """The inverse of `to_levels` in float32."""
    level = symbols.astype(jnp.float32) - np.float32(levels)
    return level * spread(units, bucket, symbols.size)


_Part: TypeAlias = Callable[[int, int], Array]  # (start, stop) -> these elements
_Rows: TypeAlias = Callable[[Array], Array]  # [m, width] -> [m]


def _reduce(size: int, bucket: int | None, values: _Part, reduce: _Rows) -> Array:
    """Reduces buckets in steps of at most 8 elements, which XLA vectorises.

    Args:
      size: number of elements.
      bucket: as in `rows`.
      values: gives the elements from start to stop.
      reduce: reduces each row of a matrix.
    """
    width = bucket or size
    while width > 8 and size > _SHORT:
        # A single bucket may be divided anywhere, as zeros that complete it change
        # nothing.
        pieces = [p for p in range(8, 1, -1) if width % p == 0 or width >= size]
        if not pieces:
            break
        parts = _by_pieces(size, pieces[0], values, reduce)
        size, width = parts.size, -(-width // pieces[0])
        values = _slices(parts)
    return _by_pieces(size, width, values, reduce)


def _by_pieces(size: int, piece: int, values: _Part, reduce: _Rows) -> Array:
    """Reduces every `piece` neighbours; zeros complete the last piece.

    XLA's loop over an odd number of rows, or over padded rows, is slow. A long vector
    is therefore reduced in two parts, of which the first has an even number of whole
    pieces. The functions `values` and `reduce` are compiled for both parts.
    """

    def part(start: int, stop: int) -> Array:
        rows = jnp.pad(values(start, stop), (0, -(stop - start) % piece))
        return reduce(rows.reshape(-1, piece))

    if size <= _SHORT or size % (2 * piece) == 0:
        return part(0, size)
    cut = size // (2 * piece) * 2 * piece
    return jnp.concatenate([part(0, cut), part(cut, size)])


def _slices(x: Array) -> _Part:
    return lambda start, stop: x[start:stop]

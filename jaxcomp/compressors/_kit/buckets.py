"""Buckets: neighbouring elements that share a scale, and rounding within them.

`Shares` is the same for many tensors as segments of one matrix, whose rows share a
scale where they are buckets, or where they are of one tensor.

This file is not a method. Its functions are written for long vectors: they neither copy
the vector nor store a second array of its size. docs/architecture.md has the
measurements behind this.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.segments import Segments, cut, from_rows, join, to_rows
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.core import prng
from jaxcomp.core.coding import packing
from jaxcomp.core.coding.packing import digits_of, pack_symbols, unpack_symbols
from jaxcomp.core.types import Array

_SHORT = 1 << 16  # shorter vectors are reduced in one piece, which compiles faster
_FEW = 8  # terms of a row that are added in one step
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


class Shares(NamedTuple):
    """Which rows share a scale: those of a tensor, or none, as each is a bucket.

    Example:
      >>> segments, rows = Segments((2, 1), 1), jnp.array([[1.0], [-3.0], [2.0]])
      >>> Shares(segments, by_tensor=True).peaks(rows)
      Array([3., 2.], dtype=float32)
    """

    segments: Segments
    by_tensor: bool

    def peaks(self, rows: Array) -> Array:
        """Largest magnitude of each share in float32; that of a NaN is the largest."""
        bits = jnp.max(magnitude_bits(rows), axis=1)
        bits = self.segments.sums(bits, jnp.max) if self.by_tensor else bits
        return jax.lax.bitcast_convert_type(bits, rows.dtype).astype(jnp.float32)

    def norms(self, rows: Array, scales: Array) -> Array:
        """Euclidean norm of each share times its scale, which is positive."""
        scaled = jnp.abs(rows.astype(jnp.float32)) * self.of_rows(scales)[:, None]
        sums = row_sums(jnp.square(scaled))
        return jnp.sqrt(self.segments.sums(sums) if self.by_tensor else sums)

    def counts(self) -> Array:
        """Elements of each share in float32."""
        sizes, width = self.segments.sizes, self.segments.width
        if self.by_tensor:
            return jnp.array(sizes, jnp.float32)
        return jnp.concatenate([counts(size, width) for size in sizes])

    def of_tensors(self, values: Sequence[float]) -> np.ndarray:
        """[tensors] -> [shares]: for each share the value of its tensor."""
        each = np.array(values, np.float32)
        return each if self.by_tensor else each[self.segments.owners]

    def to_levels(
        self,
        rows: Array,
        scales: Array,
        units: Array,
        levels: int,
        keys: Array | None,
    ) -> Array:
        """[rows, width] symbols; as `to_levels`.

        Args:
          rows: of all tensors.
          scales: of the shares.
          units: of the shares.
          levels: the largest multiple of a unit.
          keys: of the tensors, for random rounding; None rounds to the nearest.
        """
        width, by_row = self.segments.width, (self.of_rows(scales), self.of_rows(units))
        draws = None if keys is None else draws_of_each(keys, self.segments)
        flat = to_levels(rows.reshape(-1), width, *by_row, levels, draws)
        return flat.reshape(rows.shape)

    def from_levels(self, symbols: Array, units: Array, levels: int) -> Array:
        """The inverse of `to_levels` in float32."""
        level = symbols.astype(jnp.float32) - np.float32(levels)
        return level * self.of_rows(units)[:, None]

    def of_rows(self, values: Array) -> Array:
        """[shares] -> [rows]: for each row the value of its share."""
        return self.segments.spread(values)[:, 0] if self.by_tensor else values


def draws_of_each(keys: Array, segments: Segments) -> Array:
    """[rows * width] uniform numbers: each tensor has those of its own key.

    Example:
      >>> keys = jax.random.split(jax.random.key(0))
      >>> draws = draws_of_each(keys, Segments((3, 2), 2)).reshape(-1)
      >>> draws[4:] == prng.uniform(prng.seed_of(keys[1]), (2,))
      Array([ True,  True], dtype=bool)
    """
    return prng.fraction(words_of_each(keys, segments)).reshape(-1)


def words_of_each(keys: Array, segments: Segments) -> Array:
    """[rows, width] random words: each tensor has those of its own key."""
    seeds = jax.vmap(prng.seed_of)(keys)
    a, b = (segments.spread(seeds[:, i]) for i in range(2))
    return prng.words_at(segments.places_in_tensor, a, b)


def row_sums(terms: Array) -> Array:
    """Sum of each row of floats of at least 0, in an order that the width alone fixes.

    Example:
      >>> row_sums(jnp.ones((2, 64)))
      Array([64., 64.], dtype=float32)
    """
    width = terms.shape[1]
    while width % 2 == 0:
        few = math.gcd(_FEW, width)
        width //= few
        # Neighbours go into neighbouring sums, which vectorises: a reduction of XLA's
        # takes seven times as long on a CPU.
        parts = [terms[:, i * width : (i + 1) * width] for i in range(few)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        terms = parts[0]

    def add(a: Array, b: Array) -> Array:
        # The maximum changes no sum. Without it XLA would add in an order of its own,
        # which depends on the number of rows.
        return jnp.maximum(a + b, np.float32(0))

    return jax.lax.reduce(terms, np.float32(0), add, (1,))


def packed(symbols: Array, alphabet: int, segments: Segments) -> Array:
    """The symbols of all tensors in bytes, without those of the padding.

    If rows are whole numbers of bytes, each tensor begins a new byte. Otherwise the
    symbols are joined first, and only the last byte is not full.

    Args:
      symbols: [rows, width] integers in [0, alphabet).
      alphabet: number of different symbols.
      segments: of the rows.

    Example:
      >>> packed(jnp.ones((2, 64), jnp.uint8), 2, Segments((8, 16), 64))
      Array([255, 255, 255], dtype=uint8)
    """
    if _fills_bytes(alphabet, segments):
        flat = pack_symbols(symbols.reshape(-1), alphabet)
        return join(from_rows(flat, _in_bytes(segments, alphabet)))
    return pack_symbols(join(from_rows(symbols, segments)), alphabet)


def unpacked(packed: Array, alphabet: int, segments: Segments) -> Array:
    """The inverse of `packed`, as [rows, width] uint32."""
    if _fills_bytes(alphabet, segments):
        narrow = _in_bytes(segments, alphabet)
        flat = to_rows(cut(packed, narrow.sizes), narrow).reshape(-1)
        size = segments.rows * segments.width
        symbols = unpack_symbols(flat, alphabet, size)
        return symbols.reshape(segments.rows, segments.width)
    symbols = unpack_symbols(packed, alphabet, sum(segments.sizes))
    return to_rows(cut(symbols, segments.sizes), segments)


def _fills_bytes(alphabet: int, segments: Segments) -> bool:
    """Whether the symbols of a row are whole bytes, one after the other."""
    digits = digits_of(alphabet)
    return digits * packing.bit_width(alphabet) == 8 and segments.width % digits == 0


def _in_bytes(segments: Segments, alphabet: int) -> Segments:
    """The same rows, with their width and sizes in bytes of packed symbols."""
    digits = digits_of(alphabet)
    sizes = tuple(-(-size // digits) for size in segments.sizes)
    return Segments(sizes, segments.width // digits)

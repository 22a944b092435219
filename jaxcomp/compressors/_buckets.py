"""Buckets: runs of neighbouring elements that share a scale, and rounding within them.

Not a method. The passes are laid out for long vectors: no copy of the vector, no second
array of its size. What looks roundabout is measured in docs/architecture.md.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise, selection
from jaxcomp.base import Array

__all__ = [
    "counts",
    "factors",
    "from_levels",
    "largest",
    "norms",
    "peaks",
    "round_to",
    "rows",
    "spread",
    "to_levels",
]

_SHORT = 1 << 16  # fast in any way, and compiled faster in one piece
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
    """Largest magnitude of each bucket in float32; NaN above infinity above all.

    Example:
        >>> peaks(jnp.array([1.0, -3.0, 2.0]), 2)
        Array([3., 2.], dtype=float32)
    """
    # As integers: XLA's maximum of floats forgets a NaN in a long vector, and stores
    # all magnitudes first.
    bits = _reduce(
        flat.size,
        bucket,
        lambda a, b: selection.magnitude_bits(flat[a:b]),
        lambda part: jnp.max(part, axis=1),
    )
    return jax.lax.bitcast_convert_type(bits, flat.dtype).astype(jnp.float32)


def norms(flat: Array, bucket: int | None, scales: Array) -> Array:
    """Euclidean norm of each bucket times its scale, a positive one.

    Example:
        >>> norms(jnp.array([3.0, -4.0, 2.0]), 2, jnp.array([1.0, 2.0]))
        Array([5., 4.], dtype=float32)
    """
    return jnp.sqrt(_sums(flat, bucket, scales, jnp.square))


def spread(values: Array, bucket: int | None, size: int) -> Array:
    """Each element's value of its bucket; beyond the last bucket that of the last.

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
    """A power of two for each bucket that moves it to where squares stay in range.

    Squares of 1e20 leave float32, and so does 1 / 1e38. NaN for a bucket with a NaN or
    an infinity: it decodes to NaN as a whole.
    """
    powers = jnp.where(peaks < 2.0**-40, 2.0**-87, 1)
    powers = jnp.where(peaks > 2.0**40, 2.0**87, powers)
    # XLA computes cheap terms of a bucket again for each of its elements, and loses
    # more than their time as it reads what they are made of. It spares divisions.
    return 1 / jnp.where(jnp.isfinite(peaks), powers, jnp.nan)


def largest(dtype: Any) -> float:
    """The dtype's largest number, less what level * unit may gain by rounding."""
    largest = min(float(jnp.finfo(dtype).max), float(jnp.finfo(jnp.float32).max))
    return largest * (1 - 2.0**-22)


def to_levels(
    flat: Array,
    bucket: int | None,
    scales: Array,
    units: Array,
    levels: int,
    seed: Array | None,
) -> Array:
    """Each element as a multiple of its unit, plus `levels`: 0 to 2 levels.

    Args:
      flat: [n] the vector, or what `complete` makes of it.
      bucket: elements that share a unit; None for all.
      scales: [buckets] powers of two.
      units: [buckets] of the vector times its scales; zero sends zeros.
      levels: larger multiples, by rounding of the units, become this one.
      seed: of the noise; None rounds to the nearest.

    Returns:
      [n] unsigned integers.
    """
    inverse = 1 / jnp.where(units > 0, units, jnp.inf)
    x = flat.astype(jnp.float32) * spread(scales, bucket, flat.size)
    x = x * spread(inverse, bucket, flat.size)
    symbol = next(t for t in _SYMBOLS if 2 * levels <= jnp.iinfo(t).max)
    return (round_to(x, levels, seed) + levels).astype(symbol)


def round_to(x: Array, levels: int, seed: Array | None) -> Array:
    """Whole numbers from -levels to levels.

    Stochastic rounding goes up with the chance of the fraction, which the noise
    resolves to 2^-24: the mean is off by less. To the nearest, ties go to even. A NaN
    becomes a number: the scale of its bucket keeps it.

    Args:
      x: [n] float32.
      levels: those beyond become this one.
      seed: of the noise; None rounds to the nearest.

    Example:
        >>> round_to(jnp.array([0.6, -2.0, 9.0]), 3, None)
        Array([ 1., -2.,  3.], dtype=float32)
    """
    if seed is None:
        level = jnp.round(x)
    else:
        level = jnp.floor(x)
        is_up = noise.uniform(seed, x.shape) < x - level
        level += jnp.where(is_up, np.float32(1), np.float32(0))
    level = jnp.where(level < levels, level, levels)
    return jnp.where(level > -levels, level, -levels)


def from_levels(symbols: Array, bucket: int | None, units: Array, levels: int) -> Array:
    """The inverse of `to_levels` in float32."""
    level = symbols.astype(jnp.float32) - np.float32(levels)
    return level * spread(units, bucket, symbols.size)


def _sums(
    flat: Array, bucket: int | None, scales: Array, term: Callable[[Array], Array]
) -> Array:
    """Sums of a term that is not negative."""

    def terms(start: int, stop: int) -> Array:
        # |x|, as XLA would store what x times the scales is here and in `to_levels`.
        part = jnp.abs(flat[start:stop].astype(jnp.float32))
        return term(part * spread(scales, bucket, stop)[start:])

    def add(a: Array, b: Array) -> Array:
        # The maximum changes nothing. Without it XLA's reduction stores all terms.
        return jnp.maximum(a + b, np.float32(0))

    def reduce(part: Array) -> Array:
        return jax.lax.reduce(part, np.float32(0), add, (1,))

    return _reduce(flat.size, bucket, terms, reduce)


# Elements start to stop.
_Part: TypeAlias = Callable[[int, int], Array]
_Rows: TypeAlias = Callable[[Array], Array]  # [m, width] -> [m]


def _reduce(size: int, bucket: int | None, values: _Part, reduce: _Rows) -> Array:
    """[size] -> [rows] by way of rows of up to 8, which XLA unrolls and vectorises."""
    width = bucket or size
    while width > 8 and size > _SHORT:
        # A single bucket may end anywhere: zeros change nothing.
        pieces = [p for p in range(8, 1, -1) if width % p == 0 or width >= size]
        if not pieces:
            break
        parts = _by_pieces(size, pieces[0], values, reduce)
        size, width = parts.size, -(-width // pieces[0])
        values = _slices(parts)
    return _by_pieces(size, width, values, reduce)


def _by_pieces(size: int, piece: int, values: _Part, reduce: _Rows) -> Array:
    """[size] -> [ceil(size / piece)]; zeros complete the last piece.

    Rows of an odd number, or padded ones, make a slow loop, so a long vector is cut
    where many whole pieces end. What is cut must be cheap: it is computed as a branch.
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

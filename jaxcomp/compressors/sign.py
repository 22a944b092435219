"""Sign: one bit for each element and one scale, or one of three symbols."""

import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.making import compressor, of_many
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core.coding import packing
from jaxcomp.core.coding.packing import complete, pack_symbols, sign_symbols
from jaxcomp.core.coding.payloads import Signs
from jaxcomp.core.specs import SpecError, method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method()
def sign(
    name: str, scaled: bool = True, scale: Literal["l1", "l2"] = "l1"
) -> Compressor:
    """Send the signs, eight to a byte, and the mean magnitude.

    C(x) = (|x|_1 / n) sgn(x), with sgn(0) = 1. Then
    |x - C(x)|^2 = |x|_2^2 - |x|_1^2 / n <= (1 - 1/n) |x|_2^2. For Gaussian x the error
    is 1 - 2/pi of |x|^2. The method is biased: use it with a memory, which also
    corrects in later steps what elements that are zero receive. A vector of zeros
    decodes to zeros.

    With scale="l2" C(x) = (|x|_2 / sqrt(n)) sgn(x), as in 1-bit Adam. Then
    |x - C(x)|_2^2 = 2 |x|_2^2 - 2 |x|_1 |x|_2 / sqrt(n), which is more than |x|_2^2
    where few elements have most of the norm, so memories have to be told to `allow` it.
    What they keep does not grow without end: the largest element of it shrinks,
    |x - C(x)|_max <= sqrt(1 - 1/n) |x|_max.

    With scaled=False C(x) = sgn(x) with sgn(0) = 0, and five symbols share a byte. This
    form is used without a memory, so nothing would correct the step of an element that
    is zero. The error has no bound, and the learning rate alone sets the size of a
    step. In both forms a NaN or an infinity makes all of C(x) NaN.

    Args:
      scaled: whether the signs are multiplied by a scale.
      scale: "l1", the mean magnitude, or "l2", the root mean square.

    Example:
      >>> c = sign()
      >>> x = jnp.array([3.0, -1.0])
      >>> payload, _ = c.compress(x, (), None)
      >>> c.decompress(payload, x)
      Array([ 2., -2.], dtype=float32)

    References:
      Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems,
      arXiv:1802.04434, 2018. Karimireddy et al., Error Feedback Fixes SignSGD and other
      Gradient Compression Schemes, arXiv:1901.09847, 2019.
    """
    if not scaled and scale != "l1":
        raise SpecError(f"scale={scale!r} goes with scaled=True, not False")
    scale_of, scales_of = _SCALES[scale if scaled else "none"]
    if scaled:
        alphabet, to_symbols, from_symbols = 2, _bits, _signs_of_bits
    else:
        alphabet, to_symbols, from_symbols = 3, sign_symbols, _signs_of_trits

    def compress(x: Array, state: State, key: Array) -> tuple[Signs, State]:
        flat = x.reshape(-1)
        factor = scale_of(flat)
        symbols = to_symbols(complete(flat, alphabet))
        return Signs(factor, pack_symbols(symbols, alphabet)), state

    def decompress(payload: Signs, spec: Spec) -> Array:
        symbols = packing.unpack_symbols(payload.packed, alphabet, spec.size)
        return from_symbols(symbols) * payload.scale

    def contraction(spec: Spec) -> float | None:
        delta = 1 / spec.size if scale == "l1" else 2 / math.sqrt(spec.size) - 1
        return delta if scaled and delta >= 0 else None

    one = compressor(
        name,
        compress,
        decompress,
        ideal_bits=lambda spec: spec.size * math.log2(alphabet) + 32,
        contraction=contraction,
    )

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Signs:
        scales = scales_of(rows, segments)
        return Signs(scales, buckets.packed(to_symbols(rows), alphabet, segments))

    def decompress_rows(payload: Signs, segments: Segments, dtype: Any) -> Array:
        symbols = buckets.unpacked(payload.packed, alphabet, segments)
        return from_symbols(symbols) * segments.spread(payload.scale)

    return one._replace(
        segmented=of_many(one, compress_rows, decompress=decompress_rows)
    )


def _bits(x: Array) -> Array:
    return (x < 0).astype(jnp.uint8)


def _signs_of_bits(symbols: Array) -> Array:
    return jnp.where(symbols == 1, -1.0, 1.0)


def _signs_of_trits(symbols: Array) -> Array:
    return symbols.astype(jnp.float32) - 1


def mean_magnitude(flat: Array) -> Array:
    """Mean of |x| in float32, without overflow; NaN if an element is not finite.

    Example:
      >>> mean_magnitude(jnp.full(4, 3e38))
      Array(3.e+38, dtype=float32)
    """
    # The factor is a power of two of at most 1/n, so the sum cannot overflow.
    power = 2.0 ** -(flat.size - 1).bit_length()
    total = jnp.sum(jnp.abs(flat).astype(jnp.float32) * power)
    return _mean(total, flat.size * power)


def _mean(total: Array, count: float | np.ndarray) -> Array:
    # The mean of numbers near the largest may overflow by rounding.
    largest = jnp.finfo(jnp.float32).max
    mean = jnp.minimum(total * np.float32(1 / count), largest)
    return jnp.where(jnp.isfinite(total), mean, jnp.nan)


def mean_magnitudes(rows: Array, segments: Segments) -> Array:
    """`mean_magnitude` of each tensor.

    Example:
      >>> mean_magnitudes(jnp.array([[1.0, -3.0], [5.0, 0.0]]), Segments((2, 1), 2))
      Array([2., 5.], dtype=float32)
    """
    powers = [2.0 ** -(n - 1).bit_length() for n in segments.sizes]
    # The row takes a part of the power, so that no sum of a row overflows.
    terms = jnp.abs(rows).astype(jnp.float32) * (1 / segments.width)
    whole = np.array(powers, np.float32) * np.float32(segments.width)
    sums = buckets.row_sums(terms) * segments.spread(whole)[:, 0]
    return _mean(segments.sums(sums), np.array(segments.sizes) * np.array(powers))


def _root_mean_square(flat: Array) -> Array:
    factors = buckets.factors(buckets.peaks(flat, None))
    return _root(buckets.norms(flat, None, factors), flat.size, factors)[0]


def _root_mean_squares(rows: Array, segments: Segments) -> Array:
    shares = buckets.Shares(segments, by_tensor=True)
    factors = buckets.factors(shares.peaks(rows))
    return _root(shares.norms(rows, factors), shares.counts(), factors)


def _root(norms: Array, counts: Array | int, factors: Array) -> Array:
    # As of the mean, a root of numbers near the largest may overflow by rounding.
    return jnp.minimum(norms / jnp.sqrt(counts) / factors, jnp.finfo(jnp.float32).max)


def _one(flat: Array) -> Array:
    """1, or NaN if an element is not finite."""
    return jnp.where(jnp.isfinite(buckets.peaks(flat, None)[0]), 1.0, jnp.nan)


def _ones(rows: Array, segments: Segments) -> Array:
    largest = buckets.Shares(segments, by_tensor=True).peaks(rows)
    return jnp.where(jnp.isfinite(largest), 1.0, jnp.nan)


_SCALES = {
    "none": (_one, _ones),
    "l1": (mean_magnitude, mean_magnitudes),
    "l2": (_root_mean_square, _root_mean_squares),
}

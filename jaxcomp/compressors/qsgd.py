"""QSGD: round each element at random to one of a few levels, and pack them."""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.making import compressor, of_many
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import complete, pack_symbols, unpack_symbols
from jaxcomp.core.coding.payloads import Quantized
from jaxcomp.core.specs import Count, Range, SpecError, method
from jaxcomp.core.types import Array, Compressor, Spec, State

# At the largest level float32 has 8 bits left for the fraction that is rounded.
MAX_LEVELS = (1 << 16) - 1
Levels = Annotated[int, Range(1, MAX_LEVELS)]
Norm = Literal["l2", "max"]


@method("levels", "bucket")
def qsgd(
    name: str,
    levels: Levels = 127,
    bucket: Count | None = 512,
    norm: Norm = "l2",
    rounding: Literal["stochastic", "nearest"] = "stochastic",
    damped: bool = False,
) -> Compressor:
    """Round each element to one of 2s + 1 multiples of u = (norm of its bucket) / s.

    C(x)_i = u floor(x_i / u + r_i) with r_i uniform in [0, 1) and s = levels. It is
    unbiased up to 2^-24 u, the resolution of r_i, and 2^-22 |x_i|, the rounding error
    of float32. For buckets of m elements E|x - C(x)|^2 <= w |x|^2, with
    w = min(m / s^2, sqrt(m) / s) for the Euclidean norm and
    w = min((m-1) / 4s^2, sqrt(m-1) / 2s) for the maximum norm. Rounding to the nearest
    level is biased, with |x - C(x)|^2 <= (m / 4s^2) |x|^2 for the Euclidean and
    (m-1) / (4s^2 + m-1) |x|^2 for the maximum norm. A level takes ceil(log2(2s + 1))
    bits, but 1.6 bits for s = 1 and 2.67 for s = 2.

    Args:
      levels: s, the number of positive levels.
      bucket: number of elements that share a norm; None takes the whole tensor as one
        bucket.
      norm: "l2", or "max" for the largest magnitude.
      rounding: "stochastic" or "nearest".
      damped: multiply C(x) by 1 / (1 + w). This makes the method biased, but a
        contraction with delta = 1 / (1 + w) for any number of levels, as a memory
        needs. It goes with stochastic rounding only.

    Example:
      >>> import jax
      >>> c = qsgd(levels=7)
      >>> x = jnp.array([1.0, -1.0, 0.0, 0.0])
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> payload.packed.shape  # 4 bits for each
      (2,)

    References:
      Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
      Encoding, arXiv:1610.02132, 2017. Koloskova et al., Decentralized Stochastic
      Optimization and Gossip Algorithms with Compressed Communication,
      arXiv:1902.00340, 2019 (damped).
    """
    if damped and rounding == "nearest":
        raise SpecError("damped=True goes with rounding='stochastic', not 'nearest'")
    way = _Qsgd(levels, bucket, norm, rounding == "stochastic", damped)
    one = compressor(
        name,
        way.compress,
        way.decompress,
        way.ideal_bits,
        way.contraction,
        unbiased=way.is_random and not damped,
    )
    many = of_many(one, way.compress_rows, decompress=way.decompress_rows, width=bucket)
    return one._replace(segmented=many)


class _Qsgd(NamedTuple):
    """The functions of the method; `qsgd` explains its arguments."""

    levels: int
    bucket: int | None
    norm: Norm
    is_random: bool
    damped: bool

    @property
    def alphabet(self) -> int:
        return 2 * self.levels + 1

    def variance(self, size: int) -> float:
        return _variance(min(self.bucket or size, size), self.levels, self.norm)

    def measured(
        self, peaks: Array, norms: Callable[[Array], Array], dtype: Any
    ) -> tuple[Array, Array]:
        """For each bucket a factor by which its elements are multiplied, and a unit."""
        scales = buckets.factors(peaks)
        lengths = peaks * scales
        if self.norm == "l2":
            # The norm may exceed the dtype's largest number, but no element does, so
            # the largest level need not.
            lengths = jnp.minimum(norms(scales), buckets.largest(dtype) * scales)
        return scales, lengths / self.levels

    def compress(self, x: Array, state: State, key: Array) -> tuple[Quantized, State]:
        flat, bucket = x.reshape(-1), self.bucket
        peaks = buckets.peaks(flat, bucket)
        norms = functools.partial(buckets.norms, flat, bucket)
        scales, units = self.measured(peaks, norms, x.dtype)
        values, draws = complete(flat, self.alphabet), None
        if self.is_random:
            draws = prng.uniform(prng.seed_of(key), values.shape)
        symbols = buckets.to_levels(values, bucket, scales, units, self.levels, draws)
        if self.damped:
            units /= 1 + self.variance(flat.size)
        return Quantized(units / scales, pack_symbols(symbols, self.alphabet)), state

    def decompress(self, payload: Quantized, spec: Spec) -> Array:
        symbols = unpack_symbols(payload.packed, self.alphabet, spec.size)
        return buckets.from_levels(symbols, self.bucket, payload.units, self.levels)

    def compress_rows(self, rows: Array, segments: Segments, keys: Array) -> Quantized:
        shares = buckets.Shares(segments, by_tensor=self.bucket is None)
        norms = functools.partial(shares.norms, rows)
        scales, units = self.measured(shares.peaks(rows), norms, rows.dtype)
        drawn = keys if self.is_random else None
        symbols = shares.to_levels(rows, scales, units, self.levels, drawn)
        if self.damped:
            units /= shares.of_tensors([1 + self.variance(n) for n in segments.sizes])
        units = units / scales
        return Quantized(units, buckets.packed(symbols, self.alphabet, segments))

    def decompress_rows(
        self, payload: Quantized, segments: Segments, dtype: Any
    ) -> Array:
        shares = buckets.Shares(segments, by_tensor=self.bucket is None)
        symbols = buckets.unpacked(payload.packed, self.alphabet, segments)
        return shares.from_levels(symbols, payload.units, self.levels)

    def ideal_bits(self, spec: Spec) -> float:
        units = buckets.rows(spec.size, self.bucket)
        return spec.size * math.log2(self.alphabet) + 32 * units

    def contraction(self, spec: Spec) -> float | None:
        if self.damped:
            return 1 / (1 + self.variance(spec.size))
        if self.is_random:
            delta = 1 - self.variance(spec.size)
            return delta if delta > 0 else None
        m = min(self.bucket or spec.size, spec.size)
        if self.norm == "l2":
            # The error of an element is at most the element itself.
            return max(0.0, 1 - m / (4 * self.levels**2))
        return 4 * self.levels**2 / (4 * self.levels**2 + m - 1)


def _variance(m: int, levels: int, norm: str) -> float:
    """w with E|x - C(x)|^2 <= w |x|^2 for stochastic rounding of m elements.

    The variance of an element is at most u^2 / 4 and at most u |x_i|. Under the maximum
    norm the largest element is itself a level, so its variance is zero.
    """
    if norm == "l2":
        return min(m / levels**2, math.sqrt(m) / levels)
    return min((m - 1) / (4 * levels**2), math.sqrt(m - 1) / (2 * levels))

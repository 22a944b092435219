"""QSGD: stochastic levels, packed to their true width."""

import math
from typing import Annotated, Literal

import jax.numpy as jnp

from jaxcomp import noise
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.packing import complete, pack_symbols, unpack_symbols
from jaxcomp.coding.payloads import Quantized
from jaxcomp.compressors import _buckets
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import Count, Range, SpecError, method

__all__ = ["MAX_LEVELS", "Levels", "Norm", "qsgd"]

# Of the largest level float32 leaves 8 bits for the fraction that is rounded at random.
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
    """Round each element of a bucket to one of 2s + 1 multiples of its norm / s.

    C(x)_i = u floor(x_i / u + r_i), r_i uniform in [0, 1), u = |b| / s with the norm of
    the bucket b that holds x_i and s = levels. Unbiased up to 2^-24 u, which the noise
    does not resolve, and 2^-22 |x_i|, which float32 rounds off. For buckets of m
    elements E|x - C(x)|^2 <= w |x|^2, with w = min(m / s^2, sqrt(m) / s) for the
    Euclidean norm and min((m-1) / 4s^2, sqrt(m-1) / 2s) for the maximum.
    Rounding to the nearest is biased, with |x - C(x)|^2 <= (m / 4s^2) |x|^2, or
    (m-1) / (4s^2 + m-1) for the maximum. Levels take ceil(log2(2s + 1)) bits, or 1.6
    bits for s = 1 and 2.67 for s = 2.

    Args:
      levels: s, the number of positive levels.
      bucket: elements that share a norm; None takes the whole tensor as one bucket.
      norm: "l2" or "max", the largest magnitude.
      rounding: "stochastic" or "nearest".
      damped: multiply by 1 / (1 + w). Biased, and a contraction with delta = 1 / (1 +
        w) for any levels: for use with a memory. Stochastic rounding only.

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
    alphabet = 2 * levels + 1

    def variance(size: int) -> float:
        return _variance(min(bucket or size, size), levels, norm)

    def compress(x: Array, state: State, key: Array) -> tuple[Quantized, State]:
        flat = x.reshape(-1)
        peaks = _buckets.peaks(flat, bucket)
        scales = _buckets.factors(peaks)
        lengths = peaks * scales
        if norm == "l2":
            # No element exceeds the largest number, so neither need the largest level.
            top = _buckets.largest(x.dtype) * scales
            lengths = jnp.minimum(_buckets.norms(flat, bucket, scales), top)
        units = lengths / levels
        seed = noise.seed_of(key) if rounding == "stochastic" else None
        values = complete(flat, alphabet)
        symbols = _buckets.to_levels(values, bucket, scales, units, levels, seed)
        if damped:
            units /= 1 + variance(flat.size)
        return Quantized(units / scales, pack_symbols(symbols, alphabet)), state

    def decompress(payload: Quantized, spec: Spec) -> Array:
        size = math.prod(spec.shape)
        symbols = unpack_symbols(payload.packed, alphabet, size)
        values = _buckets.from_levels(symbols, bucket, payload.units, levels)
        return values.reshape(spec.shape).astype(spec.dtype)

    def ideal_bits(spec: Spec) -> float:
        size = math.prod(spec.shape)
        return size * math.log2(alphabet) + 32 * _buckets.rows(size, bucket)

    def contraction(spec: Spec) -> float | None:
        size = math.prod(spec.shape)
        if damped:
            return 1 / (1 + variance(size))
        m = min(bucket or size, size)
        if rounding == "stochastic":
            delta = 1 - variance(size)
            return delta if delta > 0 else None
        if norm == "l2":
            # What rounds to zero is lost, and no more.
            return max(0.0, 1 - m / (4 * levels**2))
        return 4 * levels**2 / (4 * levels**2 + m - 1)

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=rounding == "stochastic" and not damped,
    )


def _variance(m: int, levels: int, norm: str) -> float:
    """w with E|x - C(x)|^2 <= w |x|^2 for stochastic rounding of m elements.

    The variance of one is at most u^2 / 4 and at most u |x_i|. Under the maximum norm
    the largest element is a level itself and has none.
    """
    if norm == "l2":
        return min(m / levels**2, math.sqrt(m) / levels)
    return min((m - 1) / (4 * levels**2), math.sqrt(m - 1) / (2 * levels))

"""QSGD: stochastic levels, packed to their true width."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State, compressor
from jaxcomp.payloads import Quantized, bit_width, pack, unpack

__all__ = ["MAX_LEVELS", "qsgd"]

# Beyond it float32 has no bits left for the noise that makes the rounding unbiased.
MAX_LEVELS = 1 << 15


def qsgd(levels: int = 127, bucket: int | None = 512) -> Compressor:
    """Round each element of a bucket to one of 2s + 1 multiples of its norm / s.

    C(x)_i = (|b|_2 / s) sgn(x_i) floor(s |x_i| / |b|_2 + u_i), u_i uniform in [0, 1), b
    the bucket that holds x_i, s = levels. Unbiased, with
    E|x - C(x)|^2 <= min(m / s^2, sqrt(m) / s) |x|^2 for buckets of m elements. Levels
    are packed to ceil(log2(2s + 1)) bits.

    Args:
      levels: s, the number of positive levels.
      bucket: elements that share a norm; None takes the whole tensor as one bucket.

    Example:
        >>> c = qsgd(levels=7)
        >>> x = jnp.array([1.0, -1.0, 0.0, 0.0])
        >>> payload, _ = c.compress(x, (), jax.random.key(0))
        >>> payload.words.shape  # 4 bits for each of 32 places
        (4,)

    References:
      Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
      Encoding, arXiv:1610.02132, 2017.
    """
    if type(levels) is not int or not 1 <= levels <= MAX_LEVELS:
        raise ValueError(
            f"levels is a whole number from 1 to {MAX_LEVELS}, not {levels!r}"
        )
    if bucket is not None and (type(bucket) is not int or bucket < 1):
        raise ValueError(
            f"bucket is a whole number of at least 1 or None, not {bucket!r}"
        )
    bits = bit_width(2 * levels + 1)

    def rows(size: int) -> int:
        return -(-size // (bucket or size))

    def compress(x: Array, state: State, key: Array) -> tuple[Quantized, State]:
        flat = x.reshape(-1).astype(jnp.float32)
        count = rows(flat.size)
        width = bucket or flat.size
        buckets = jnp.pad(flat, (0, count * width - flat.size)).reshape(count, width)
        factors = _factors(buckets)
        buckets = buckets * factors[:, None]
        norms = jnp.sqrt(jnp.sum(jnp.square(buckets), axis=1))
        # No element exceeds the largest number, so neither need the largest level.
        units = jnp.minimum(norms, _largest(x.dtype) * factors) / levels
        scaled = jnp.abs(buckets) / jnp.where(units == 0, 1.0, units)[:, None]
        noise = jax.random.uniform(key, buckets.shape)
        # One element alone has |x| / unit == s exactly; rounding may push it above.
        level = jnp.minimum(jnp.floor(scaled + noise), levels)
        level = jnp.where(buckets < 0, -level, level).reshape(-1)[: flat.size]
        symbols = (level + levels).astype(jnp.uint32)
        return Quantized(units / factors, pack(symbols, bits)), state

    def decompress(payload: Quantized, spec: Spec) -> Array:
        size = math.prod(spec.shape)
        symbols = unpack(payload.words, bits, size)
        level = symbols.astype(jnp.int32) - levels
        units = jnp.repeat(
            payload.units,
            bucket or size,
            total_repeat_length=rows(size) * (bucket or size),
        )[:size]
        return (
            (level.astype(jnp.float32) * units).reshape(spec.shape).astype(spec.dtype)
        )

    def ideal_bits(spec: Spec) -> float:
        size = math.prod(spec.shape)
        return size * math.log2(2 * levels + 1) + 32 * rows(size)

    def contraction(spec: Spec) -> float | None:
        size = math.prod(spec.shape)
        m = min(bucket or size, size)
        delta = 1 - min(m / levels**2, math.sqrt(m) / levels)
        return delta if delta > 0 else None

    return compressor(
        f"qsgd(levels={levels}, bucket={bucket})",
        compress=compress,
        decompress=decompress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=True,
    )


def _factors(buckets: Array) -> Array:
    """A power of two for each row that moves it to where squares stay in range.

    Squares of 1e20 leave float32, and so does 1 / 1e38, which compilers multiply by
    instead of dividing. NaN for a row with a NaN or an infinity: the row decodes to NaN
    as a whole.
    """
    peak = jnp.max(jnp.abs(buckets), axis=1)
    factors = jnp.where(
        peak > 2.0**40, 2.0**-87, jnp.where(peak < 2.0**-40, 2.0**87, 1)
    )
    return jnp.where(jnp.isfinite(peak), factors, jnp.nan)


def _largest(dtype: Any) -> float:
    """The dtype's largest number, less what level * unit may gain by rounding."""
    largest = min(float(jnp.finfo(dtype).max), float(jnp.finfo(jnp.float32).max))
    return largest * (1 - 2.0**-22)

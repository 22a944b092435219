"""QSGD: stochastic levels, packed to their true width."""

import math

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State, compressor
from jaxcomp.payloads import Quantized, bit_width, pack, unpack

__all__ = ["qsgd"]


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
    if not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels is a whole number of at least 1, not {levels}")
    if bucket is not None and (not isinstance(bucket, int) or bucket < 1):
        raise ValueError(
            f"bucket is a whole number of at least 1 or None, not {bucket}"
        )
    bits = bit_width(2 * levels + 1)

    def rows(size: int) -> int:
        return -(-size // (bucket or size))

    def compress(x: Array, state: State, key: Array) -> tuple[Quantized, State]:
        flat = x.reshape(-1).astype(jnp.float32)
        count = rows(flat.size)
        width = bucket or flat.size
        buckets = jnp.pad(flat, (0, count * width - flat.size)).reshape(count, width)
        units = _norms(buckets) / levels
        scaled = jnp.abs(buckets) / jnp.where(units == 0, 1.0, units)[:, None]
        noise = jax.random.uniform(key, buckets.shape)
        # One element alone has |x| / unit == s exactly; rounding may push it above.
        level = jnp.minimum(jnp.floor(scaled + noise), levels)
        level = jnp.where(buckets < 0, -level, level).reshape(-1)[: flat.size]
        symbols = (level + levels).astype(jnp.uint32)
        return Quantized(units, pack(symbols, bits)), state

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


def _norms(buckets: Array) -> Array:
    """L2 norm of each row without overflow: squares of 1e20 leave float32."""
    peak = jnp.max(jnp.abs(buckets), axis=1)
    safe = jnp.where(peak == 0, 1.0, peak)
    return peak * jnp.sqrt(jnp.sum(jnp.square(buckets / safe[:, None]), axis=1))

"""Natural compression: round each element to a power of two at random."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.buckets import packed, unpacked, words_of_each
from jaxcomp.compressors._kit.making import compressor, of_many
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import complete, pack, unpack
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State

_MANTISSA = 23  # bits of float32's
_SMALLEST = 0x00800000  # 2^-126, as bits
_INFINITE = 0x7F800000


class Powers(NamedTuple):
    """Powers of two with signs, in nine bits each."""

    exponents: Array  # [n] uint8, packed: e of 2^(e - 127), 0 for zero
    signs: Array  # [ceil(n / 8)] uint8, packed; minus zero means NaN


@method()
def natural(name: str) -> Compressor:
    """Round each element to the power of two above or below it.

    For 2^k <= |x_i| < 2^(k+1), |C(x)_i| is 2^(k+1) with probability |x_i| / 2^k - 1,
    else 2^k. This probability is the mantissa of x_i, so adding 23 random bits to the
    bits of x_i rounds it with exactly this probability. The method is unbiased with
    E|x - C(x)|^2 <= |x|^2 / 8, and it needs no scale. 2^128 is decoded to the largest
    float32, which is less than a rounding error away. Numbers below 2^-126, which XLA
    takes for zero, are sent as zero. A NaN or an infinity decodes to NaN.

    Example:
      >>> c = natural()
      >>> x = jnp.array([4.0, -0.5, 0.0])
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> c.decompress(payload, x)
      Array([ 4. , -0.5,  0. ], dtype=float32)

    References:
      Horvath et al., Natural Compression for Distributed Deep Learning,
      arXiv:1905.10988, 2019.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Powers, State]:
        flat = x.reshape(-1)
        seed = prng.seed_of(key)
        values = complete(flat, 256)
        exponents = _exponents(values, prng.words(seed, values.size))
        signs = _signs(complete(flat, 2))
        return Powers(exponents, pack(signs, bits=1)), state

    def decompress(payload: Powers, spec: Spec) -> Array:
        signs = unpack(payload.signs, bits=1, size=spec.size)
        exponents = unpack(payload.exponents, bits=8, size=spec.size)
        return _values(exponents, signs, spec.dtype)

    one = compressor(
        name,
        compress,
        decompress,
        ideal_bits=lambda spec: 9.0 * spec.size,
        contraction=lambda spec: 7 / 8,
        unbiased=True,
    )

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Powers:
        exponents = _exponents(rows, words_of_each(keys, segments))
        signs = _signs(rows).astype(jnp.uint8)
        return Powers(packed(exponents, 256, segments), packed(signs, 2, segments))

    def decompress_rows(payload: Powers, segments: Segments, dtype: Any) -> Array:
        exponents = unpacked(payload.exponents, 256, segments)
        return _values(exponents, unpacked(payload.signs, 2, segments), dtype)

    return one._replace(
        segmented=of_many(one, compress_rows, decompress=decompress_rows)
    )


def _exponents(x: Array, words: Array) -> Array:
    """Exponents of powers of two near x, rounded at random; 0 for zero and NaN."""
    magnitudes, is_normal = _magnitudes(x)
    rounded = (magnitudes + (words >> np.uint32(9))) >> np.uint32(_MANTISSA)
    return jnp.where(is_normal, rounded, np.uint32(0)).astype(jnp.uint8)


def _signs(x: Array) -> Array:
    """Whether x is negative, or not finite."""
    magnitudes, is_normal = _magnitudes(x)
    return jnp.where(is_normal, x < 0, magnitudes >= _INFINITE)


def _values(exponents: Array, signs: Array, dtype: Any) -> Array:
    """The numbers that exponents and signs stand for, in float32."""
    negative = signs == 1
    powers = jax.lax.bitcast_convert_type(exponents << _MANTISSA, jnp.float32)
    largest = min(float(jnp.finfo(d).max) for d in (dtype, jnp.float32))
    powers = jnp.minimum(powers, largest)
    values = jnp.where(negative, -powers, powers)
    return jnp.where(negative & (exponents == 0), jnp.nan, values)


def _magnitudes(x: Array) -> tuple[Array, Array]:
    """Bits of |x| in float32, and whether it is from 2^-126 to the largest number."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    bits &= np.uint32(0x7FFFFFFF)
    is_normal = bits - np.uint32(_SMALLEST) < np.uint32(_INFINITE - _SMALLEST)
    return bits, is_normal

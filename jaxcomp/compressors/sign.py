"""Sign: one bit for each element and a scale, or one of three symbols."""

import math

import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.packing import complete, pack, pack_signs, unpack, unpack_signs
from jaxcomp.coding.payloads import Signs
from jaxcomp.compressors import _buckets
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import method

__all__ = ["mean_magnitude", "sign"]


@method()
def sign(name: str, scaled: bool = True) -> Compressor:
    """Send the signs, eight to a byte, and the mean magnitude.

    C(x) = (|x|_1 / n) sgn(x), with sgn(0) = 1. Then
    |x - C(x)|^2 = |x|_2^2 - |x|_1^2 / n <= (1 - 1/n) |x|_2^2; on Gaussian x the error
    is 1 - 2/pi of |x|^2. Biased: use a memory, which also takes back what zeros among
    others are given. A vector of zeros is sent as it is.

    Not scaled, C(x) = sgn(x) with sgn(0) = 0, five to a byte: no memory takes back a
    step of full length, so that zeros must not take one. No bound holds, and the
    learning rate is the size of the step. A NaN or an infinity makes all of C(x) NaN.

    Args:
      scaled: whether signs are multiplied by the mean magnitude.

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
    if scaled:
        alphabet, pack_own, unpack_own = 2, _pack_bits, _unpack_bits
    else:
        alphabet, pack_own, unpack_own = 3, pack_signs, unpack_signs

    def compress(x: Array, state: State, key: Array) -> tuple[Signs, State]:
        flat = x.reshape(-1)
        if scaled:
            scale = mean_magnitude(flat)
        else:
            is_finite = jnp.isfinite(_buckets.peaks(flat, None)[0])
            scale = jnp.where(is_finite, 1.0, jnp.nan)
        return Signs(scale, pack_own(complete(flat, alphabet))), state

    def decompress(payload: Signs, spec: Spec) -> Array:
        values = unpack_own(payload.packed, math.prod(spec.shape)) * payload.scale
        return values.reshape(spec.shape).astype(spec.dtype)

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=lambda spec: math.prod(spec.shape) * math.log2(alphabet) + 32,
        contraction=lambda spec: 1 / math.prod(spec.shape) if scaled else None,
        unbiased=False,
    )


def _pack_bits(flat: Array) -> Array:
    return pack(flat < 0, bits=1)


def _unpack_bits(packed: Array, size: int) -> Array:
    return jnp.where(unpack(packed, bits=1, size=size) == 1, -1.0, 1.0)


def mean_magnitude(flat: Array) -> Array:
    """Mean of |x| in float32, at any scale; NaN if there is a NaN or an infinity.

    Example:
        >>> mean_magnitude(jnp.full(4, 3e38))
        Array(3.e+38, dtype=float32)
    """
    # No sum of n magnitudes times a power of two of at most 1/n leaves the range.
    power = 2.0 ** -(flat.size - 1).bit_length()
    total = jnp.sum(jnp.abs(flat).astype(jnp.float32) * power)
    # By rounding, the mean of the largest numbers may.
    largest = jnp.finfo(jnp.float32).max
    mean = jnp.minimum(total * (1 / (flat.size * power)), largest)
    return jnp.where(jnp.isfinite(total), mean, jnp.nan)

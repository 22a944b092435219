"""Sign: one bit for each element and one scale, or one of three symbols."""

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
    |x - C(x)|^2 = |x|_2^2 - |x|_1^2 / n <= (1 - 1/n) |x|_2^2. For Gaussian x the error
    is 1 - 2/pi of |x|^2. The method is biased: use it with a memory, which also
    corrects in later steps what elements that are zero receive. A vector of zeros
    decodes to zeros.

    With scaled=False C(x) = sgn(x) with sgn(0) = 0, and five symbols share a byte. This
    form is used without a memory, so nothing would correct the step of an element that
    is zero. The error has no bound, and the learning rate alone sets the size of a
    step. In both forms a NaN or an infinity makes all of C(x) NaN.

    Args:
      scaled: whether the signs are multiplied by the mean magnitude.

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
        alphabet, to_bytes, from_bytes = 2, _pack_bits, _unpack_bits
    else:
        alphabet, to_bytes, from_bytes = 3, pack_signs, unpack_signs

    def compress(x: Array, state: State, key: Array) -> tuple[Signs, State]:
        flat = x.reshape(-1)
        if scaled:
            scale = mean_magnitude(flat)
        else:
            is_finite = jnp.isfinite(_buckets.peaks(flat, None)[0])
            scale = jnp.where(is_finite, 1.0, jnp.nan)
        return Signs(scale, to_bytes(complete(flat, alphabet))), state

    def decompress(payload: Signs, spec: Spec) -> Array:
        return from_bytes(payload.packed, spec.size) * payload.scale

    return compressor(
        name,
        compress,
        decompress,
        ideal_bits=lambda spec: spec.size * math.log2(alphabet) + 32,
        contraction=lambda spec: 1 / spec.size if scaled else None,
    )


def _pack_bits(flat: Array) -> Array:
    return pack(flat < 0, bits=1)


def _unpack_bits(packed: Array, size: int) -> Array:
    return jnp.where(unpack(packed, bits=1, size=size) == 1, -1.0, 1.0)


def mean_magnitude(flat: Array) -> Array:
    """Mean of |x| in float32, without overflow; NaN if an element is not finite.

    Example:
      >>> mean_magnitude(jnp.full(4, 3e38))
      Array(3.e+38, dtype=float32)
    """
    # The factor is a power of two of at most 1/n, so the sum cannot overflow.
    power = 2.0 ** -(flat.size - 1).bit_length()
    total = jnp.sum(jnp.abs(flat).astype(jnp.float32) * power)
    # The mean of numbers near the largest may overflow by rounding.
    largest = jnp.finfo(jnp.float32).max
    mean = jnp.minimum(total * (1 / (flat.size * power)), largest)
    return jnp.where(jnp.isfinite(total), mean, jnp.nan)

"""Scaled sign: one bit for each element."""

import math

import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State, compressor
from jaxcomp.payloads import Signs, pack, unpack

__all__ = ["mean_magnitude", "sign"]


def sign() -> Compressor:
    """Send the signs, 32 to a word, and the mean magnitude.

    C(x) = (|x|_1 / n) sgn(x), with sgn(0) = 1. Then
    |x - C(x)|^2 = |x|_2^2 - |x|_1^2 / n <= (1 - 1/n) |x|_2^2; on Gaussian x the error
    is 1 - 2/pi of |x|^2. Biased: use a memory.

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

    def compress(x: Array, state: State, key: Array) -> tuple[Signs, State]:
        flat = x.reshape(-1)
        return Signs(mean_magnitude(flat), pack(flat < 0, bits=1)), state

    def decompress(payload: Signs, spec: Spec) -> Array:
        negative = unpack(payload.words, bits=1, size=math.prod(spec.shape))
        values = jnp.where(negative == 1, -payload.scale, payload.scale)
        return values.reshape(spec.shape).astype(spec.dtype)

    return compressor(
        "sign",
        compress=compress,
        decompress=decompress,
        ideal_bits=lambda spec: math.prod(spec.shape) + 32.0,
        contraction=lambda spec: 1 / math.prod(spec.shape),
        unbiased=False,
    )


def mean_magnitude(flat: Array) -> Array:
    """Mean of |x| in float32, without overflow for huge elements.

    Example:
        >>> mean_magnitude(jnp.full(4, 3e38))
        Array(3.e+38, dtype=float32)
    """
    return jnp.sum(jnp.abs(flat).astype(jnp.float32) * (1 / flat.size))

"""Adaptive threshold: send every element of at least half the largest magnitude."""

import jax.numpy as jnp

from jaxcomp.compressors._kit.making import kept
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.compressors._kit.thresholds import Cap, Overflow, by_threshold
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec


@method("cap")
def adaptive_threshold(
    name: str, cap: Cap = 0.05, index: Code = "auto", overflow: Overflow = "largest"
) -> Compressor:
    """Keep the elements with 2 |x_i| >= max |x|, at most k = round(cap * n) of them.

    The largest element is always sent, and if fewer than k are sent, all others are
    below half of it. So |x - C(x)|^2 <= (1 - delta) |x|^2 with
    delta = min(k/n, 4 / (n + 3)). The method is biased: use it with a memory. Zeros are
    never sent; NaN and infinity always are. The payload has room for k elements and
    the field `passed`, as in `threshold`. On processors that take denormal numbers for
    zero, all elements of a vector of nothing else reach the threshold.

    Args:
      cap: largest fraction of the elements that is sent, in (0, 1].
      index: how places are coded; see `top_k`.
      overflow: "largest" or "nan"; see `threshold`.

    Example:
      >>> c = adaptive_threshold(cap=0.75)
      >>> payload, _ = c.compress(jnp.array([1.0, -4.0, 2.0, 0.5]), (), None)
      >>> payload.values, payload.passed
      (Array([-4.,  2.,  0.], dtype=float32), Array(2, dtype=uint32))

    References:
      Dutta et al., On the Discrepancy between the Theoretical Analysis and Practical
      Implementations of Compressed Communication, arXiv:1911.08250, 2020 (the published
      code has this method). Chen et al., AdaComp: Adaptive Residual Gradient
      Compression for Data-Parallel Distributed Training, arXiv:1712.02679, 2017 (the
      same rule, within bins and with a residual).
    """

    def contraction(spec: Spec) -> float:
        if overflow == "nan":
            return 0.0
        return min(kept(spec.size, cap) / spec.size, 4 / (spec.size + 3))

    # On some machines a reduction by maximum loses a NaN. That does no harm: a NaN
    # reaches every threshold.
    return by_threshold(name, half, cap, index, overflow, contraction)


def half(peak: Array) -> Array:
    """Magnitude bits of peak / 2, rounded up and at least 1; infinity stays infinity.

    The bits are halved and not the number, because for some floats neither 2 |x| nor
    |x| / 2 is in range.

    Example:
      >>> hex(half(jnp.float32(1.0)))
      '0x3f000000'
    """
    bits = magnitude_bits(peak)
    unsigned = bits.dtype.type
    binade = 1 << jnp.finfo(peak.dtype).nmant
    # Below the second binade the floats are evenly spaced and their bits count them.
    even = jnp.maximum((bits + unsigned(1)) // unsigned(2), unsigned(1))
    halved = jnp.where(bits < unsigned(2 * binade), even, bits - unsigned(binade))
    return jnp.where(jnp.isfinite(peak), halved, bits)

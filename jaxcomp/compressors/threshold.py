"""Fixed threshold: send every element of at least a given magnitude."""

import math

import jax.numpy as jnp

from jaxcomp.compressors._kit.selection import magnitude_bits_of
from jaxcomp.compressors._kit.thresholds import Cap, Overflow, by_threshold
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.specs import Positive, method
from jaxcomp.core.types import Array, Compressor


@method("v", "cap")
def threshold(
    name: str,
    v: Positive = 0.001,
    cap: Cap = 0.05,
    index: Code = "auto",
    overflow: Overflow = "largest",
) -> Compressor:
    """Keep the elements of magnitude >= v, at most round(cap * n) of them.

    C(x)_i = x_i if |x_i| >= v, else 0. A message always has room for the cap, however
    many elements reach v, so that with a cap of 1 every message would be larger than
    the tensor. If more elements reach v, `overflow` says what is sent; with a small v
    the method is then the same as `top_k(keep=cap)`. The field `passed` of the payload
    says how many elements reached v, and the figure `overflow`, which the trainer
    prints for each epoch, how many of them found no room. NaN and infinity reach every
    threshold. If all elements are below v, nothing is sent, so the contraction is 0.
    The method is biased: use it with a memory.

    Args:
      v: the threshold, above 0. It is rounded up to the next number of x's dtype.
      cap: largest fraction of the elements that is sent, in (0, 1].
      index: how places are coded; see `top_k`.
      overflow: what is sent if more elements reach v than the cap allows: "largest"
        sends the largest of them, "nan" sends NaN for all values, so that a check for
        bad steps notices it.

    Example:
      >>> c = threshold(v=2.0, cap=0.75)
      >>> payload, _ = c.compress(jnp.array([1.0, -4.0, 2.0, 0.5]), (), None)
      >>> payload.values, payload.passed
      (Array([-4.,  2.,  0.], dtype=float32), Array(2, dtype=uint32))

    References:
      Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing,
      Interspeech, 2015. Dutta et al., On the Discrepancy between the Theoretical
      Analysis and Practical Implementations of Compressed Communication,
      arXiv:1911.08250, 2020.
    """

    def floor(peak: Array) -> int:
        largest = float(jnp.finfo(peak.dtype).max)
        return magnitude_bits_of(v if v <= largest else math.inf, peak.dtype)

    return by_threshold(name, floor, cap, index, overflow, lambda spec: 0.0)

"""Fixed threshold: every element of at least a given magnitude."""

import math
from typing import Any

import jax.numpy as jnp

from jaxcomp import selection
from jaxcomp.base import Array, Compressor, State
from jaxcomp.coding.indices import Code
from jaxcomp.compressors import _capped, _sparse
from jaxcomp.compressors._capped import Cap, Capped, Overflow
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import Positive, method

__all__ = ["threshold"]


@method("v", "cap")
def threshold(
    name: str,
    v: Positive = 0.001,
    cap: Cap = 0.05,
    index: Code = "auto",
    overflow: Overflow = "largest",
) -> Compressor:
    """Keep the elements of magnitude >= v, at most round(cap * n) of them.

    C(x)_i = x_i where |x_i| >= v, else 0. A message has the size of the cap, whatever
    passes, so that a cap of 1 would send more than the tensor at every step. When more
    pass, the largest are sent, or NaN, as `overflow` says: where v is small, this is
    `top_k(keep=cap)`. The payload's `passed`, the figure `overflow` and the trainer's
    line of each epoch tell it. NaN and infinity pass every threshold. A vector below v
    sends nothing, so the contraction is 0. Biased: use a
    memory.

    Args:
      v: the threshold, above 0. In a narrow type it is rounded up to the next number.
      cap: largest fraction of the elements that is sent, in (0, 1].
      index: how places are sent; see `top_k`.
      overflow: what is sent when more than the cap pass: "largest", the largest ones,
        or "nan", NaN in their stead, so that a guard against bad steps sees it.

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

    def room(size: int) -> int:
        return _sparse.kept(size, cap)

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        floor = _floor(float(v), flat.dtype)
        chosen = _capped.reaching(flat, floor, room(flat.size))
        return _capped.send(flat, chosen, index, overflow), state

    return compressor(
        name,
        compress=compress,
        decompress=_sparse.decompress,
        accumulate=_sparse.accumulate,
        ideal_bits=lambda spec: _sparse.ideal_bits(spec, room(math.prod(spec.shape))),
        contraction=lambda spec: 0.0,
        unbiased=False,
        support=lambda spec: room(math.prod(spec.shape)),
        figures=(_capped.overflow_figure(room),),
    )


def _floor(v: float, dtype: Any) -> int:
    """Magnitude bits of v; those of infinity where v is beyond the type."""
    beyond = v > float(jnp.finfo(dtype).max)
    return selection.magnitude_bits_of(math.inf if beyond else v, dtype)

"""Adaptive threshold: every element of at least half the largest magnitude."""

import math

import jax.numpy as jnp

from jaxcomp import selection
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.indices import Code
from jaxcomp.compressors import _capped, _sparse
from jaxcomp.compressors._capped import Cap, Capped, Overflow
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import method

__all__ = ["adaptive_threshold", "half"]


@method("cap")
def adaptive_threshold(
    name: str, cap: Cap = 0.05, index: Code = "auto", overflow: Overflow = "largest"
) -> Compressor:
    """Keep the elements with 2 |x_i| >= max |x|, at most k = round(cap * n) of them.

    The largest element always passes and the others left out are below half of it, so
    |x - C(x)|^2 <= (1 - delta) |x|^2 with delta = 4 / (n + 3), or k/n if that is less.
    Biased: use a memory. Buffer and `passed` as in `threshold`. Zeros never pass; NaN
    and infinity do. Where the processor takes denormal numbers for zero, a vector of
    nothing else passes as a whole.

    Args:
      cap: largest fraction of the elements that is sent, in (0, 1].
      index: how places are sent; see `top_k`.
      overflow: "largest" or "nan"; see `threshold`.

    Example:
        >>> c = adaptive_threshold(cap=0.75)
        >>> payload, _ = c.compress(jnp.array([1.0, -4.0, 2.0, 0.5]), (), None)
        >>> payload.values, payload.passed
        (Array([-4.,  2.,  0.], dtype=float32), Array(2, dtype=uint32))

    References:
      Dutta et al., arXiv:1911.08250, 2020 (its code). Chen et al., AdaComp: Adaptive
      Residual Gradient Compression for Data-Parallel Distributed Training,
      arXiv:1712.02679, 2017 (the rule, within bins and with a residue).
    """

    def room(size: int) -> int:
        return _sparse.kept(size, cap)

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        # This may lose a NaN (reductions by max do on some machines), which passes
        # every threshold all the same.
        floor = half(jnp.max(jnp.abs(flat)))
        chosen = _capped.reaching(flat, floor, room(flat.size))
        return _capped.send(flat, chosen, index, overflow), state

    def contraction(spec: Spec) -> float:
        size = math.prod(spec.shape)
        return min(room(size) / size, 4 / (size + 3)) if overflow == "largest" else 0.0

    return compressor(
        name,
        compress=compress,
        decompress=_sparse.decompress,
        accumulate=_sparse.accumulate,
        ideal_bits=lambda spec: _sparse.ideal_bits(spec, room(math.prod(spec.shape))),
        contraction=contraction,
        unbiased=False,
        support=lambda spec: room(math.prod(spec.shape)),
        figures=(_capped.overflow_figure(room),),
    )


def half(peak: Array) -> Array:
    """Magnitude bits of peak / 2, rounded up; at least 1, and infinity stays.

    Of bits, because neither 2 |x| nor |x| / 2 is in range for every float.

    Example:
        >>> hex(half(jnp.float32(1.0)))
        '0x3f000000'
    """
    bits = selection.magnitude_bits(peak)
    unsigned = bits.dtype.type
    binade = 1 << jnp.finfo(peak.dtype).nmant
    # Below the second binade numbers are evenly spaced, with their bits as the count.
    even = jnp.maximum((bits + unsigned(1)) // unsigned(2), unsigned(1))
    halved = jnp.where(bits < unsigned(2 * binade), even, bits - unsigned(binade))
    return jnp.where(jnp.isfinite(peak), halved, bits)

"""Cast: a narrower float, whose bits travel as they are."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.packing import complete
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import method

__all__ = ["Narrow", "cast"]

Dtype = Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


class Narrow(NamedTuple):
    """The bits of narrow floats. Collectives of these floats themselves widen them."""

    bits: Array  # [n] uint16 or uint8


@method("dtype")
def cast(name: str, dtype: Dtype = "bfloat16") -> Compressor:
    """Round every element to the nearest number of a narrower type.

    Biased. Numbers beyond the type's largest become the largest; NaN and infinity
    surface. bfloat16 has float32's range and 8 bits, so |x - C(x)| <= 2^-9 |x|, and
    2^-8 |x| for those beyond its largest: delta = 1 - 2^-16. The others let small
    elements vanish, below 3e-8 (float16), 1e-3 (e4m3fn) and 8e-6 (e5m2): delta = 0.

    Args:
      dtype: "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2". Gradients are
        small, so bfloat16 is the safe one; `block_scaled` takes eight bits and scales.

    Example:
        >>> c = cast()
        >>> x = jnp.array([1.0, 1 / 3])
        >>> payload, _ = c.compress(x, (), None)
        >>> payload.bits
        Array([16256, 16043], dtype=uint16)
        >>> c.decompress(payload, x)
        Array([1.        , 0.33398438], dtype=float32)

    References:
      Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433, 2022.
    """
    narrow = jnp.dtype(dtype)
    bits = jnp.uint8 if narrow.itemsize == 1 else jnp.uint16

    def compress(x: Array, state: State, key: Array) -> tuple[Narrow, State]:
        # A long vector of odd size travels with one more element: see `complete`.
        narrowed = _to(complete(x.reshape(-1), alphabet=256), narrow)
        return Narrow(jax.lax.bitcast_convert_type(narrowed, bits)), state

    def decompress(payload: Narrow, spec: Spec) -> Array:
        values = jax.lax.bitcast_convert_type(payload.bits, narrow)
        values = values[: math.prod(spec.shape)]
        return _to(values, spec.dtype).reshape(spec.shape)

    def contraction(spec: Spec) -> float:
        if _holds(narrow, spec.dtype):
            return 1.0
        return 1 - 2.0**-16 if dtype == "bfloat16" else 0.0

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=lambda spec: 8.0 * narrow.itemsize * math.prod(spec.shape),
        contraction=contraction,
        unbiased=False,
    )


def _to(x: Array, dtype: Any) -> Array:
    """Nearest, but finite for finite numbers."""
    if _holds(dtype, x.dtype):
        return x.astype(dtype)
    wide = x.astype(jnp.float32)
    limit = float(jnp.finfo(dtype).max)
    return jnp.where(jnp.isfinite(wide), wide.clip(-limit, limit), wide).astype(dtype)


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether every number of one type is one of the other."""
    w, n = jnp.finfo(wide), jnp.finfo(narrow)
    return w.nmant >= n.nmant and w.maxexp >= n.maxexp and w.minexp <= n.minexp

"""Cast: send every element as a narrower float."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.compressors._kit.making import compressor
from jaxcomp.core.coding.packing import complete
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State

Dtype = Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


class Narrow(NamedTuple):
    """The bits of narrow floats, as integers.

    On some backends a collective of narrow floats would send them as wider ones.
    """

    bits: Array  # [n] uint16 or uint8


@method("dtype")
def cast(name: str, dtype: Dtype = "bfloat16") -> Compressor:
    """Round every element to the nearest number of a narrower type.

    The method is biased. Finite numbers beyond the largest of the type become the
    largest; NaN and infinity stay visible. bfloat16 has the range of float32 and 8
    significant bits, so |x_i - C(x)_i| <= 2^-9 |x_i|, or 2^-8 |x_i| beyond its largest
    number, and delta = 1 - 2^-16. The other types round small elements to zero, below
    3e-8 (float16), 1e-3 (e4m3fn) and 8e-6 (e5m2), so their delta is 0.

    Args:
      dtype: "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2". Gradients are
        small, so bfloat16 is the safe choice. For eight bits, `block_scaled` also sends
        scales.

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
        # A long vector of odd size is sent with one more element; see `complete`.
        narrowed = _to(complete(x.reshape(-1), alphabet=256), narrow)
        return Narrow(jax.lax.bitcast_convert_type(narrowed, bits)), state

    def decompress(payload: Narrow, spec: Spec) -> Array:
        values = jax.lax.bitcast_convert_type(payload.bits, narrow)
        return _to(values[: spec.size], spec.dtype)

    def contraction(spec: Spec) -> float:
        if _holds(narrow, spec.dtype):
            return 1.0
        return 1 - 2.0**-16 if dtype == "bfloat16" else 0.0

    def ideal_bits(spec: Spec) -> float:
        return 8.0 * narrow.itemsize * spec.size

    return compressor(name, compress, decompress, ideal_bits, contraction)


def _to(x: Array, dtype: Any) -> Array:
    """The nearest numbers of a dtype; those of finite numbers are finite."""
    if _holds(dtype, x.dtype):
        return x.astype(dtype)
    wide = x.astype(jnp.float32)
    limit = float(jnp.finfo(dtype).max)
    return jnp.where(jnp.isfinite(wide), wide.clip(-limit, limit), wide).astype(dtype)


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether the wide type can represent every number of the narrow type."""
    w, n = jnp.finfo(wide), jnp.finfo(narrow)
    return w.nmant >= n.nmant and w.maxexp >= n.maxexp and w.minexp <= n.minexp

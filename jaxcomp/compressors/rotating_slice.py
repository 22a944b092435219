"""Rotating slice: send k neighbouring elements, the next k at the next step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.making import Keep, compressor, kept, value_bits
from jaxcomp.compressors._kit.segments import add_at
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State


class Slice(NamedTuple):
    """Neighbouring elements; the first element follows the last one."""

    values: Array  # [k]
    offset: Array  # [] uint32: the place of values[0]


@method("keep")
def rotating_slice(name: str, keep: Keep = 0.01) -> Compressor:
    """Keep k = round(keep * n) neighbouring elements, at least one; then the next k.

    Step t sends the elements (t k + j) mod n for j = 0 to k - 1, so ceil(n / k) steps
    send every element. Of the places only the first is sent. All workers are at the
    same step, so they choose the same places (`aligned`). The method is biased, and a
    single step may lose all of x (delta = 0). Use it with a memory: with error feedback
    everything has been sent after ceil(n / k) steps.

    Args:
      keep: fraction of the elements that is KEPT, in (0, 1].

    Example:
      >>> c = rotating_slice(keep=0.5)
      >>> x = jnp.arange(1.0, 4.0)
      >>> first, state = c.compress(x, c.init(x), None)
      >>> second, _ = c.compress(x, state, None)
      >>> first.values, second.values
      (Array([1., 2.], dtype=float32), Array([3., 1.], dtype=float32))

    References:
      Watcharapichat et al., Ako: Decentralised Deep Learning with Partial Gradient
      Exchange, SoCC, 2016 (parts of the gradient in turn).
    """

    def init(spec: Spec) -> Array:
        return jnp.zeros((), jnp.uint32)

    def compress(x: Array, state: Array, key: Array) -> tuple[Slice, State]:
        flat = x.reshape(-1)
        k = kept(flat.size, keep)
        places = _places(state, k, flat.size)
        values = flat.at[places].get(mode="promise_in_bounds")
        return Slice(values, state), _wrap(state, np.uint32(k), flat.size)

    def accumulate(total: Array, payload: Slice) -> Array:
        places = _places(payload.offset, payload.values.size, total.size)
        return add_at(
            total, places, payload.values, "promise_in_bounds", unique_indices=True
        )

    def support(spec: Spec) -> int:
        return kept(spec.size, keep)

    return compressor(
        name,
        compress,
        ideal_bits=lambda spec: support(spec) * value_bits(spec),
        contraction=lambda spec: 1.0 if support(spec) == spec.size else 0.0,
        accumulate=accumulate,
        init=init,
        support=support,
        aligned=True,
    )


def _places(offset: Array, count: int, size: int) -> Array:
    return _wrap(jax.lax.iota(jnp.uint32, count), offset, size)


def _wrap(place: Array, by: Array | np.uint32, size: int) -> Array:
    """(place + by) mod size for numbers of at most `size`; the sum may exceed 2^32."""
    room = np.uint32(size) - by
    return jnp.where(place >= room, place - room, place + by)

"""Rotating slice: a run of neighbouring elements, the next ones at every step."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep, kept
from jaxcomp.specs import method

__all__ = ["Slice", "rotating_slice"]


class Slice(NamedTuple):
    """Neighbouring elements; after the last element comes the first one."""

    values: Array  # [k]
    offset: Array  # [] uint32: the place of values[0]


@method("keep")
def rotating_slice(name: str, keep: Keep = 0.01) -> Compressor:
    """Keep k = round(keep * n) neighbouring elements, at least one; then the next k.

    Step t sends the places (t k + j) mod n, j = 0 to k - 1: of any n values sent in a
    row, one is of each element. The only place sent is that of the first value.
    Workers take their steps together, so they agree on the places (`aligned`). Biased,
    and at one step everything may be lost (delta = 0): a memory makes up for it, and
    with error feedback everything has been sent after ceil(n / k) steps.

    Args:
      keep: fraction of the elements KEPT, in (0, 1].

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
        values = payload.values.astype(total.dtype)
        flat = total.reshape(-1)
        added = flat.at[places].add(
            values, mode="promise_in_bounds", unique_indices=True
        )
        return added.reshape(total.shape)

    def decompress(payload: Slice, spec: Spec) -> Array:
        return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)

    def ideal_bits(spec: Spec) -> float:
        k = kept(math.prod(spec.shape), keep)
        return k * jnp.dtype(spec.dtype).itemsize * 8

    def contraction(spec: Spec) -> float:
        size = math.prod(spec.shape)
        return 1.0 if kept(size, keep) == size else 0.0

    return compressor(
        name,
        init=init,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=False,
        aligned=True,
        support=lambda spec: kept(math.prod(spec.shape), keep),
    )


def _places(offset: Array, count: int, size: int) -> Array:
    return _wrap(jax.lax.iota(jnp.uint32, count), offset, size)


def _wrap(place: Array, by: Array | np.uint32, size: int) -> Array:
    """(place + by) mod size, of numbers up to size; the sum might pass 2^32."""
    room = np.uint32(size) - by
    return jnp.where(place >= room, place - room, place + by)

"""What all sparsifiers share: the fraction kept, and the payload of places and values.

Not a method: a method chooses places and calls `send`; its payload is decoded here.
"""

import math
from typing import Annotated

import jax.numpy as jnp

from jaxcomp.base import Array, Payload, Spec
from jaxcomp.coding import indices
from jaxcomp.coding.payloads import Sparse
from jaxcomp.specs import Range

__all__ = [
    "Keep",
    "accumulate",
    "decompress",
    "ideal_bits",
    "kept",
    "send",
    "subset_bits",
]

# Other tools count what they DROP, so a number above 1 is told what is counted here.
Keep = Annotated[float, Range(above=0, most=1, says="the fraction kept, in (0, 1]")]


def send(flat: Array, places: Array, index: str = "auto") -> Sparse:
    """The payload of the elements at ascending places.

    Args:
      flat: [n] the vector.
      places: [k] ascending; n stands for no element and sends a zero.
      index: one of `indices.CODES`.

    Example:
        >>> places = jnp.array([1, 3], jnp.uint32)  # the second one is absent
        >>> send(jnp.arange(3.0), places).values
        Array([1., 0.], dtype=float32)
    """
    values = flat.at[places].get(mode="fill", fill_value=0)
    return Sparse(values, indices.encode(places, flat.size + 1, index))


def accumulate(total: Array, payload: Payload) -> Array:
    """total + C(x), touching the sent places alone: `accumulate` of a compressor."""
    places = indices.decode(payload.indices, total.size + 1, payload.values.size)
    values = payload.values.astype(total.dtype)
    flat = total.reshape(-1)
    # Ascending but not unique: all absent elements stand at n, which is out of range.
    added = flat.at[places].add(values, mode="drop", indices_are_sorted=True)
    return added.reshape(total.shape)


def decompress(payload: Payload, spec: Spec) -> Array:
    """C(x): zero but at the sent places."""
    return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)


def ideal_bits(spec: Spec, count: int) -> float:
    """The bound for `count` values and their places: log2 C(n, k) beside the values."""
    value = jnp.dtype(spec.dtype).itemsize * 8
    return count * value + subset_bits(math.prod(spec.shape), count)


def kept(size: int, keep: float) -> int:
    """Number of elements kept of `size`: round(keep * size), at least one.

    Example:
        >>> kept(1000, 0.01), kept(3, 0.01), kept(100, 0.07)
        (10, 1, 7)
    """
    return min(size, max(1, round(keep * size)))


def subset_bits(n: int, k: int) -> float:
    """log2 of the number of k-subsets of n places.

    Example:
        >>> round(subset_bits(4, 2), 3)  # six subsets
        2.585
    """
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log / math.log(2)

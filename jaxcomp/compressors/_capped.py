"""What thresholds share: a buffer of static size for a number that the data choose.

Not a method. Where more pass than there is room for, the largest are sent or NaN is; it
is never cut in the order of places. How many passed is in the payload and, as the
figure `overflow`, in what the trainer reports.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import selection
from jaxcomp.base import Array, Figure, Spec
from jaxcomp.coding import bitmaps
from jaxcomp.coding.indices import EliasFano
from jaxcomp.compressors import _sparse
from jaxcomp.selection import Selected
from jaxcomp.specs import Range

__all__ = [
    "Cap",
    "Capped",
    "Overflow",
    "largest_of",
    "overflow_figure",
    "reach",
    "reaching",
    "send",
]

Overflow = Literal["largest", "nan"]
Cap = Annotated[
    float, Range(above=0, most=1, says="the largest fraction sent, in (0, 1]")
]
_SHORT = 1 << 16  # sorted by `selection`: a smaller program


class Capped(NamedTuple):
    """Elements that passed a threshold."""

    values: Array  # [most]; zeros where fewer passed
    indices: Array | EliasFano  # ascending; the vector's size where fewer passed
    passed: Array  # [] uint32: how many passed, sent or not


def reaching(flat: Array, floor: Array | int, most: int) -> Selected:
    """`selection.largest`, by one pass over the vector where no more than `most` pass.

    Args:
      flat: [n] the vector.
      floor: magnitude bits.
      most: at most so many are taken; at most n.
    """
    if flat.size <= _SHORT:
        return selection.largest(flat, most, floor)
    floor = jnp.asarray(floor, selection.magnitude_bits(flat).dtype)
    return largest_of(flat, reach(flat, floor), floor, most, most)


def reach(flat: Array, floor: Array) -> Array:
    """Bitmap of the elements of magnitude bits >= floor."""
    flat, floor = jax.lax.optimization_barrier((flat, floor))
    return bitmaps.to_words(selection.magnitude_bits(flat) >= floor)


def largest_of(
    flat: Array, words: Array, floor: Array, most: int, wanted: int
) -> Selected:
    """All elements that reach a floor, or if these are too many, the largest of them.

    Args:
      flat: [n] the vector.
      words: bitmap of the elements that reach the floor.
      floor: magnitude bits.
      most: more are too many.
      wanted: how many are taken then.
    """
    passed = bitmaps.count(words)
    too_many = passed > np.uint32(most)

    def the_largest() -> Array:
        places = selection.largest(flat, wanted, floor).places
        return jnp.pad(places, (0, most - wanted), constant_values=flat.size)

    def all_of_them() -> Array:
        return bitmaps.places(words, most, absent=flat.size)

    places = jax.lax.cond(too_many, the_largest, all_of_them)
    return Selected(places, jnp.where(too_many, np.uint32(wanted), passed), passed)


def send(flat: Array, chosen: Selected, index: str, overflow: str) -> Capped:
    """The payload of the chosen elements, with the policy for too many.

    Args:
      flat: [n] the vector.
      chosen: places and how many passed.
      index: one of `indices.CODES`.
      overflow: "largest" or "nan".
    """
    values, places = _sparse.send(flat, chosen.places, index)
    if overflow == "nan":
        nan = jnp.asarray(jnp.nan, values.dtype)
        values = jnp.where(chosen.passed > np.uint32(values.size), nan, values)
    return Capped(values, places, chosen.passed)


def overflow_figure(room: Callable[[int], int]) -> Figure:
    """What is reported: how many more passed than there is room for.

    Args:
      room: size of the vector -> size of the buffer.
    """

    def of(payload: Any, spec: Spec) -> Array:
        most = np.uint32(room(math.prod(spec.shape)))
        return (jnp.maximum(payload.passed, most) - most).astype(jnp.float32)

    return Figure("overflow", of)

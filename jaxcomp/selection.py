"""Exact selection of the elements of largest magnitude, in a few passes over a vector.

Magnitudes are compared as integers (`magnitudes`). The selection first finds a
threshold that few more elements reach than are wanted. Among these candidates it finds
the smallest element that is wanted, and then it lists the places of the wanted elements
in ascending order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array
from jaxcomp.coding import bitmaps
from jaxcomp.magnitudes import (
    largest_reached,
    magnitude_bits,
    reached_in_rows,
    sign_bit,
    unsigned_of,
)
from jaxcomp.trees import vary_like

__all__ = [
    "Selected",
    "kth_largest",
    "largest",
]


# Shorter vectors are sorted. A model has many of them, each is compiled, and compiling
# takes longer than sorting.
_SHORT = 1 << 16
_COLUMNS = 64  # elements whose counts are added up first
_GUESS_BITS = 20  # leading bits of a guessed threshold; the others are zero


class Selected(NamedTuple):
    """Places of selected elements in ascending order."""

    places: Array  # [most] uint32; the vector's size if fewer are selected
    taken: Array  # [] uint32: how many elements are selected
    passed: Array  # [] uint32: how many elements reached the floor


def largest(x: Array, most: int, floor: Array | int = 0) -> Selected:
    """The `most` largest elements among those whose magnitude bits are >= floor.

    Of elements with equal magnitudes the first ones are taken. A threshold is guessed
    from a sample at fixed distances. Bisection corrects it until at most half as many
    more elements reach it as are wanted. Each of its steps counts elements in one pass
    over the vector, and usually the first guess is right. If too many elements have
    the same magnitude as the threshold, the elements above it and the first of the
    equal ones are the candidates.

    Args:
      x: [n] floats.
      most: largest number of elements that are taken, at most n.
      floor: magnitude bits below which no element is taken.

    Example:
      >>> largest(jnp.array([1.0, -3.0, 2.0]), most=2).places
      Array([1, 2], dtype=uint32)
    """
    floor = jnp.asarray(floor, unsigned_of(x.dtype))
    if x.size <= _SHORT:
        return _sorted(x, most, floor)
    room = min(x.size, most + most // 2 + 64)
    threshold = _threshold(x, most, room, floor)
    candidates = _reaching(x, threshold, np.uint32(room), room)
    values = x.at[candidates].get(mode="fill", fill_value=0)
    # From here on only the candidates are searched, which takes almost no time.
    present = bitmaps.count(bitmaps.to_words(candidates < x.size))
    count = jnp.minimum(present, np.uint32(most))
    last = kth_largest(values, count)
    chosen = _reaching(values, last, count, most)
    places = candidates.at[chosen].get(mode="fill", fill_value=x.size)
    passed = bitmaps.count(bitmaps.to_words(_reach(x, floor)))
    return Selected(places, count, passed)


def _sorted(x: Array, most: int, floor: Array) -> Selected:
    """`largest` by sorting, which is compiled faster."""
    _, places = jax.lax.top_k(jnp.abs(x), most)
    reaches = magnitude_bits(x) >= floor
    places = jnp.where(reaches[places], places, x.size)
    passed = jnp.sum(reaches, dtype=jnp.uint32)
    places = jnp.sort(places.astype(jnp.uint32))
    return Selected(places, jnp.minimum(passed, np.uint32(most)), passed)


def _reaching(x: Array, threshold: Array, count: Array | np.uint32, most: int) -> Array:
    """Places of the elements above a threshold and of the first ones equal to it.

    Args:
      x: [n] floats.
      threshold: magnitude bits.
      count: number of places in total.
      most: length of the result.
    """
    beyond = bitmaps.to_words(_reach(x, threshold + np.array(1, threshold.dtype)))
    on = bitmaps.to_words(_reach(x, threshold)) & ~beyond
    on = bitmaps.first(on, count - bitmaps.count(beyond))
    return bitmaps.places(beyond | on, most, absent=x.size)


def _threshold(x: Array, most: int, room: int, floor: Array) -> Array:
    """A threshold that between `most` and `room` elements reach, if there is one.

    Otherwise it is the floor, which fewer than `most` elements reach, or a threshold
    that more than `room` elements reach because many are equal to it.
    """

    class Search(NamedTuple):
        """The state of the bisection."""

        low: Array  # at least `most` elements reach it, or it is the floor
        high: Array  # fewer than `most` elements reach it
        probe: Array  # the threshold that is tried next
        counted: Array  # number of elements that reach `low`

    def searching(s: Search) -> Array:
        return (s.counted > room) & (s.high - s.low > 1)

    def step(s: Search) -> Search:
        found = bitmaps.count(bitmaps.to_words(_reach(x, s.probe)))
        enough = (found >= most) | (s.probe == floor)
        low = jnp.where(enough, s.probe, s.low)
        high = jnp.where(enough, s.high, s.probe)
        counted = jnp.where(enough, found, s.counted)
        return Search(low, high, low + (high - low) // 2, counted)

    # No magnitude has the sign bit. A smaller limit would lose a NaN with all bits set.
    top = jnp.asarray(sign_bit(floor.dtype), floor.dtype)
    guess = jnp.maximum(_guess(x, most, room), floor)
    start = Search(floor, top, guess, jnp.uint32(x.size))
    return jax.lax.while_loop(searching, step, vary_like(start, (x, floor))).low


def _guess(x: Array, most: int, room: int) -> Array:
    """A threshold that between `most` and `room` elements may reach, from a sample."""
    # The distance is odd, because a power of two may divide the number of channels, and
    # all samples would be of the same channel. A sample of 65,536 elements, or of one
    # in 33, estimates ranks up to a few percent.
    sample = x[:: min(33, x.size // 65536) | 1]
    wanted = min(most + (room - most) // 2, x.size) * sample.size // x.size
    return kth_largest(sample, jnp.uint32(max(1, wanted)), _GUESS_BITS)


def kth_largest(x: Array, k: Array, leading: int | None = None) -> Array:
    """Bits of the k-th largest magnitude.

    Args:
      x: [n] floats.
      k: [] uint32.
      leading: as in `largest_reached`.

    Example:
      >>> int(kth_largest(jnp.array([-2.0, 1.0, 3.0]), jnp.uint32(2)))
      1073741824
    """

    bits = magnitude_bits(jnp.pad(x, (0, -x.size % _COLUMNS)).reshape(-1, _COLUMNS))

    def reached(magnitudes: Array) -> Array:
        return jnp.sum(reached_in_rows(bits, magnitudes[None, :]), axis=0)

    return largest_reached(reached, vary_like(k, x), unsigned_of(x.dtype), leading)


def _reach(x: Array, threshold: Array) -> Array:
    """A mask of magnitude_bits(x) >= threshold.

    Without the barrier the compiler would compute all bits once before a loop. Storing
    this copy of the vector takes more time than all steps of the loop.
    """
    x, threshold = jax.lax.optimization_barrier((x, threshold))
    return magnitude_bits(x) >= threshold

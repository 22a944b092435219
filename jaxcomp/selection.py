"""Exact selection of the largest magnitudes, in a few passes over the vector.

Magnitudes are compared as integers: without its sign bit, a float's bits order as its
magnitude does, NaN above infinity above all numbers. The selection narrows the vector
to little more than the elements it is asked for, finds the exact last one among these,
and lists the places in ascending order.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array
from jaxcomp.coding import bitmaps
from jaxcomp.trees import vary_like

__all__ = ["Selected", "largest", "magnitude_bits", "magnitude_bits_of"]


# A model has many short tensors and each is compiled; their time hardly counts.
_SHORT = 1 << 16


class Selected(NamedTuple):
    """Places of chosen elements in ascending order."""

    places: Array  # [most] uint32; the vector's size where there are fewer
    taken: Array  # [] uint32: how many places are chosen
    passed: Array  # [] uint32: how many elements reached the floor


def magnitude_bits(x: Array) -> Array:
    """|x| as unsigned integers in the same order; NaN is the largest.

    Example:
      >>> magnitude_bits(jnp.array([-2.0, 1.0, 0.0])).argsort()
      Array([2, 1, 0], dtype=int32)
    """
    unsigned = _unsigned(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    return bits & np.array(_sign_bit(unsigned) - 1, unsigned)


def magnitude_bits_of(value: float, dtype: Any) -> int:
    """`magnitude_bits` of a Python number, at least as large, in the given dtype.

    Example:
      >>> hex(magnitude_bits_of(1.0, jnp.float32))
      '0x3f800000'
    """
    rounded = np.asarray(abs(value)).astype(dtype)
    bits = int(rounded.view(_unsigned(dtype)))
    return bits if float(rounded) >= abs(value) else bits + 1


def largest(x: Array, most: int, floor: Array | int = 0) -> Selected:
    """The elements of magnitude bits >= floor, and of these the `most` largest.

    Of equal magnitudes the ones in front are taken. A first guess of the threshold
    comes from a strided sample; bisection mends it until the elements above are at
    most half as many again as wanted. Counting takes a pass over the vector, and the
    first guess is right as a rule. Equal magnitudes cannot defeat it: where a threshold
    is met by too many, the elements beyond it and the first of those on it remain.

    Args:
      x: [n] floats.
      most: at most so many are taken; at most n.
      floor: magnitude bits below which none is taken.

    Example:
      >>> largest(jnp.array([1.0, -3.0, 2.0]), most=2).places
      Array([1, 2], dtype=uint32)
    """
    floor = jnp.asarray(floor, _unsigned(x.dtype))
    if x.size <= _SHORT:
        return _sorted(x, most, floor)
    room = min(x.size, most + most // 2 + 64)
    threshold = _threshold(x, most, room, floor)
    candidates = _reaching(x, threshold, np.uint32(room), room)
    theirs = x.at[candidates].get(mode="fill", fill_value=0)
    # The rest would do with `x` as well; among the candidates it costs almost nothing.
    there = bitmaps.count(bitmaps.to_words(candidates < x.size))
    count = jnp.minimum(there, np.uint32(most))
    last = _kth_largest(theirs, count)
    chosen = _reaching(theirs, last, count, most)
    places = candidates.at[chosen].get(mode="fill", fill_value=x.size)
    passed = bitmaps.count(bitmaps.to_words(_reach(x, floor)))
    return Selected(places, count, passed)


def _sorted(x: Array, most: int, floor: Array) -> Selected:
    """`largest` by sorting: milliseconds at most here, and compiled much faster."""
    _, places = jax.lax.top_k(jnp.abs(x), most)
    reaches = magnitude_bits(x) >= floor
    places = jnp.where(reaches[places], places, x.size)
    passed = jnp.sum(reaches, dtype=jnp.uint32)
    places = jnp.sort(places.astype(jnp.uint32))
    return Selected(places, jnp.minimum(passed, np.uint32(most)), passed)


def _reaching(x: Array, threshold: Array, count: Array | np.uint32, most: int) -> Array:
    """Places of all beyond the threshold and of the first on it: `count` in total."""
    beyond = bitmaps.to_words(_reach(x, threshold + np.array(1, threshold.dtype)))
    on = bitmaps.to_words(_reach(x, threshold)) & ~beyond
    on = bitmaps.first(on, count - bitmaps.count(beyond))
    return bitmaps.places(beyond | on, most, absent=x.size)


def _threshold(x: Array, most: int, room: int, floor: Array) -> Array:
    """The largest bits found that `most` elements reach, and if it can be few others.

    On return either between `most` and `room` elements reach it, or it is the floor
    and fewer do, or so many are equal to it that no threshold separates them.
    """

    class Search(NamedTuple):
        low: Array  # `most` elements reach it, or it is the floor
        high: Array  # fewer than `most` do
        probe: Array
        counted: Array  # that reach `low`

    def searching(s: Search) -> Array:
        return (s.counted > room) & (s.high - s.low > 1)

    def step(s: Search) -> Search:
        found = bitmaps.count(bitmaps.to_words(_reach(x, s.probe)))
        enough = (found >= most) | (s.probe == floor)
        low = jnp.where(enough, s.probe, s.low)
        high = jnp.where(enough, s.high, s.probe)
        counted = jnp.where(enough, found, s.counted)
        return Search(low, high, low + (high - low) // 2, counted)

    # Nothing reaches the sign bit. One less would lose a NaN with all bits set.
    top = jnp.asarray(_sign_bit(floor.dtype), floor.dtype)
    guess = jnp.maximum(_guess(x, most, room), floor)
    start = Search(floor, top, guess, jnp.uint32(x.size))
    return jax.lax.while_loop(searching, step, vary_like(start, (x, floor))).low


def _guess(x: Array, most: int, room: int) -> Array:
    """Where a threshold between `most` and `room` elements may be, from a sample."""
    # Odd, so that it falls in step with no power of two of channels; a sample of
    # 65,536 or of one in 33 estimates ranks to some percent.
    sample = x[:: min(33, x.size // 65536) | 1]
    wanted = min(most + (room - most) // 2, x.size) * sample.size // x.size
    return _kth_largest(sample, jnp.uint32(max(1, wanted)))


def _kth_largest(x: Array, k: Array) -> Array:
    """The largest threshold that k elements reach, bit by bit from the top."""
    unsigned = _unsigned(x.dtype)
    width = jnp.iinfo(unsigned).bits

    def step(i: Array, threshold: Array) -> Array:
        one = jnp.asarray(1, unsigned)
        raised = threshold | (one << (width - 2 - i).astype(unsigned))
        reached = bitmaps.count(bitmaps.to_words(_reach(x, raised)))
        return jnp.where(reached >= k, raised, threshold)

    start = vary_like(jnp.zeros((), unsigned), (x, k))
    return jax.lax.fori_loop(0, width - 1, step, start)


def _reach(x: Array, threshold: Array) -> Array:
    """Where magnitude_bits(x) >= threshold.

    The barrier keeps the compiler from computing the bits once ahead of a loop: storing
    a copy of the vector costs more than all rounds of the loop.
    """
    x, threshold = jax.lax.optimization_barrier((x, threshold))
    return magnitude_bits(x) >= threshold


def _unsigned(dtype: Any) -> Any:
    return {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[jnp.dtype(dtype).itemsize]


def _sign_bit(unsigned: Any) -> int:
    return 1 << (jnp.iinfo(unsigned).bits - 1)

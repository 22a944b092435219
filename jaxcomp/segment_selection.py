"""Exact selection of the largest elements of each of many tensors, at once.

The tensors are the segments of one matrix. As in `selection`, magnitudes are compared
as integers. First a threshold is found for each tensor that at least as many of its
elements reach as are wanted, and few more. Among these candidates, which are a new and
small matrix, the smallest wanted element of each tensor is found exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array
from jaxcomp.coding import bitmaps
from jaxcomp.magnitudes import largest_reached, magnitude_bits, reached_in_rows
from jaxcomp.segments import Segments
from jaxcomp.trees import vary_like

__all__ = [
    "LargestOfEach",
    "kth_largest_of_each",
    "largest_of_each",
    "reached_by_each",
]

# Up to this size all elements are candidates, which is compiled faster.
_SHORT = 1 << 16
_CANDIDATES_WIDTH = 64
_LARGEST_GROUP = 32  # elements of which a guess looks at the largest only
_GUESS_BITS = 18  # leading bits of a guessed threshold; the others are zero
_GUESS_STEP = 2  # of these bits, in one round


class LargestOfEach(NamedTuple):
    """Places of selected elements in ascending order."""

    places: Array  # [sum of most] uint32 in the matrix; its size if fewer are selected
    taken: Array  # [tensors] uint32: how many elements are selected


def largest_of_each(
    rows: Array,
    segments: Segments,
    most: Sequence[int],
    floor: Array | None = None,
    count: Array | None = None,
) -> LargestOfEach:
    """The `most` largest elements of each tensor, among those that reach its floor.

    Of elements with equal magnitudes the first ones are taken.

    Args:
      rows: [rows, width] floats, from `to_rows`.
      segments: of the rows.
      most: for each tensor the largest number that is taken, at most its size.
      floor: [tensors] magnitude bits below which no element is taken; None takes all.
        A floor is above 0, so that padding does not reach it.
      count: [tensors] uint32: how many are taken at most; None stands for `most`.

    Example:
      >>> from jaxcomp.segments import segments_of, to_rows
      >>> segments = segments_of([3, 1])  # rows of 512 elements
      >>> rows = to_rows([jnp.array([1.0, -3.0, 2.0]), jnp.ones(1)], segments)
      >>> largest_of_each(rows, segments, most=(2, 1)).places
      Array([  1,   2, 512], dtype=uint32)
    """
    total = sum(most)
    rooms = tuple(
        min(size, -(-(k + k // 2 + 64) // _CANDIDATES_WIDTH) * _CANDIDATES_WIDTH)
        for size, k in zip(segments.sizes, most, strict=True)
    )
    chosen = Segments(rooms, _CANDIDATES_WIDTH)
    limit = np.array(most, np.uint32) if count is None else count
    if rows.size <= _SHORT or 2 * sum(rooms) >= rows.size:
        bits, present = magnitude_bits(rows), np.array(segments.sizes, np.uint32)
        if floor is not None:
            present = _counts(bits >= segments.spread(floor), segments)
        taken = jnp.minimum(present, limit)
        words = _exactly(bits, segments, taken)
        return LargestOfEach(bitmaps.places(words, total, absent=rows.size), taken)
    candidates, found = _candidates(rows, segments, chosen, most, floor)
    taken = jnp.minimum(found, limit)
    values = rows.reshape(-1).at[candidates].get(mode="fill", fill_value=0)
    bits = magnitude_bits(values).reshape(chosen.rows, chosen.width)
    words = _exactly(bits, chosen, taken)
    last = bitmaps.places(words, total, absent=candidates.size)
    places = candidates.at[last].get(mode="fill", fill_value=rows.size)
    return LargestOfEach(places, taken)


def kth_largest_of_each(
    bits: Array,
    k: Array,
    segments: Segments,
    leading: int | None = None,
    step: int = 4,
) -> Array:
    """The k-th largest of the magnitude bits of each tensor.

    Args:
      bits: [rows, columns] magnitude bits; rows as in `segments`, any number of
        columns.
      k: [tensors] uint32.
      segments: says which rows belong to which tensor.
      leading: as in `magnitudes.largest_reached`.
      step: as in `magnitudes.largest_reached`.

    Example:
      >>> bits = jnp.array([[5, 7], [3, 0]], jnp.uint32)
      >>> k = jnp.array([2, 1], jnp.uint32)
      >>> kth_largest_of_each(bits, k, Segments((2, 1), 2))
      Array([5, 3], dtype=uint32)
    """

    def reached(magnitudes: Array) -> Array:
        by_row = reached_in_rows(bits, magnitudes[segments.owners])
        return segments.sums(by_row)

    return largest_reached(reached, vary_like(k, bits), bits.dtype, leading, step)


def reached_by_each(rows: Array, segments: Segments, floor: Array) -> Array:
    """How many elements of each tensor reach its floor, as [tensors] uint32.

    Args:
      rows: [rows, width] floats, from `to_rows`.
      segments: of the rows.
      floor: [tensors] magnitude bits, all above 0.
    """
    return _ones(_reach(rows, segments, floor), segments)


def _candidates(
    rows: Array,
    segments: Segments,
    chosen: Segments,
    most: Sequence[int],
    floor: Array | None,
) -> tuple[Array, Array]:
    """Places of the candidates, in the rows of `chosen`, and the number of each."""
    rooms = np.array(chosen.sizes, np.uint32)
    threshold = _threshold(rows, segments, rooms, most, floor)
    beyond = _reach(rows, segments, threshold + np.array(1, threshold.dtype))
    on = _reach(rows, segments, threshold) & ~beyond
    space = jnp.asarray(rooms) - _ones(beyond, segments)
    words = beyond | _first_of_each(on, space, segments)
    counts = _ones(words, segments)
    before = jnp.cumsum(counts) - counts
    columns = np.arange(chosen.rows * chosen.width, dtype=np.uint32)
    columns = columns.reshape(chosen.rows, chosen.width)
    # The number of a candidate among those of its tensor.
    own = columns - (chosen.starts * np.uint32(chosen.width))[chosen.owners][:, None]
    ranks = jnp.where(
        own < chosen.spread(counts), chosen.spread(before) + own, np.uint32(rows.size)
    )
    flat = words.reshape(-1)
    return bitmaps.places_of(flat, ranks.reshape(-1), absent=rows.size), counts


def _threshold(
    rows: Array,
    segments: Segments,
    rooms: np.ndarray,
    most: Sequence[int],
    floor: Array | None,
) -> Array:
    """For each tensor a threshold that `most` to `room` elements reach, if any is one.

    Otherwise it is the floor, or one that more elements reach because many are equal.
    """

    class Search(NamedTuple):
        """The state of the bisection."""

        low: Array  # at least `most` elements reach it, or it is the floor
        high: Array  # fewer than `most` elements reach it
        counted: Array  # number of elements that reach `low`

    wanted = np.array(most, np.uint32)

    def is_open(s: Search) -> Array:
        return (s.counted > rooms) & (s.high - s.low > 1)

    def searching(s: Search) -> Array:
        return jnp.any(is_open(s))

    def step(s: Search) -> Search:
        probe = s.low + (s.high - s.low) // 2
        found = _ones(_reach(rows, segments, probe), segments)
        rises, falls = is_open(s) & (found >= wanted), is_open(s) & (found < wanted)
        low = jnp.where(rises, probe, s.low)
        counted = jnp.where(rises, found, s.counted)
        return Search(low, jnp.where(falls, probe, s.high), counted)

    low = _guess(rows, segments, most)
    if floor is not None:
        low = jnp.maximum(low, floor)
    high = jnp.full_like(low, 1 << (jnp.iinfo(low.dtype).bits - 1))
    start = Search(low, high, _ones(_reach(rows, segments, low), segments))
    return jax.lax.while_loop(searching, step, vary_like(start, rows)).low


def _guess(rows: Array, segments: Segments, most: Sequence[int]) -> Array:
    """For each tensor a threshold that at least `most` elements reach, and few more.

    The k-th largest of the maxima of groups is such a threshold. It is rounded down.
    """
    group = _LARGEST_GROUP
    pairs = list(zip(segments.heights, most, strict=True))
    while group > 1 and any(4 * k * group > h * segments.width for h, k in pairs):
        group //= 2
    columns = segments.width // group
    groups = magnitude_bits(rows).reshape(segments.rows, group, columns)
    peaks = jnp.max(groups, axis=1)
    wanted = jnp.array(most, jnp.uint32)
    return kth_largest_of_each(peaks, wanted, segments, _GUESS_BITS, _GUESS_STEP)


def _exactly(bits: Array, segments: Segments, count: Array) -> Array:
    """A bitmap of the `count` largest of each tensor; of equal ones the first."""
    last = kth_largest_of_each(bits, count, segments)
    beyond = bitmaps.to_words((bits > segments.spread(last)).reshape(-1))
    on = bitmaps.to_words((bits >= segments.spread(last)).reshape(-1)) & ~beyond
    beyond, on = (w.reshape(segments.rows, -1) for w in (beyond, on))
    first = _first_of_each(on, count - _ones(beyond, segments), segments)
    return (beyond | first).reshape(-1)


def _first_of_each(words: Array, most: Array, segments: Segments) -> Array:
    """Of each tensor's bits the first `most`; all others are cleared."""
    counts = jax.lax.population_count(words)
    by_row = jnp.sum(counts, axis=1, dtype=jnp.uint32)
    earlier = jnp.cumsum(by_row) - by_row
    before = jnp.cumsum(counts, axis=1) - counts
    before += (earlier - earlier[segments.starts][segments.owners])[:, None]
    most = segments.spread(most)
    return bitmaps.first_of_words(words, most - jnp.minimum(most, before))


def _reach(rows: Array, segments: Segments, threshold: Array) -> Array:
    """[rows, width / 32]: the bitmap of the elements that reach their threshold."""
    rows, threshold = jax.lax.optimization_barrier((rows, threshold))
    mask = magnitude_bits(rows) >= segments.spread(threshold)
    return bitmaps.to_words(mask.reshape(-1)).reshape(segments.rows, -1)


def _ones(words: Array, segments: Segments) -> Array:
    """Number of bits that are set, of each tensor."""
    counts = jax.lax.population_count(words)
    return segments.sums(jnp.sum(counts, axis=1, dtype=jnp.uint32))


def _counts(mask: Array, segments: Segments) -> Array:
    """Number of elements of a mask, of each tensor."""
    return segments.sums(jnp.sum(mask, axis=1, dtype=jnp.uint32))

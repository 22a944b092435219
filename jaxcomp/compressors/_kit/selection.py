"""The largest elements, exactly: of one vector, or of each segment of a matrix.

They are found by the bits of their magnitudes. The bits of a float without its sign bit
have the same order as its magnitude. NaN is above infinity, and infinity above all
numbers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core.coding import indices
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array

# Shorter vectors are sorted. A model has many of them, each is compiled, and compiling
# takes longer than sorting.
_SHORT = 1 << 16
_COLUMNS = 64  # elements whose counts are added up first
_GUESS_BITS = 20  # leading bits of a guessed threshold; the others are zero
# The same for segments.
_CANDIDATES_WIDTH = 64
_LARGEST_GROUP = 32  # elements of which a guess looks at the largest only
_SEGMENT_GUESS_BITS = 18  # leading bits of a guessed threshold; the others are zero
_GUESS_STEP = 2  # of these bits, in one round


def magnitude_bits(x: Array) -> Array:
    """Unsigned integers in the same order as |x|; that of NaN is the largest.

    Example:
      >>> magnitude_bits(jnp.array([-2.0, 1.0, 0.0])).argsort()
      Array([2, 1, 0], dtype=int32)
    """
    unsigned = unsigned_of(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    return bits & np.array(jnp.iinfo(unsigned).max >> 1, unsigned)


def magnitude_bits_of(value: float, dtype: Any) -> int:
    """`magnitude_bits` of a Python number, rounded up to the next number of a dtype.

    Example:
      >>> hex(magnitude_bits_of(1.0, jnp.float32))
      '0x3f800000'
    """
    rounded = np.asarray(abs(value)).astype(dtype)
    bits = int(rounded.view(unsigned_of(dtype)))
    return bits if float(rounded) >= abs(value) else bits + 1


def unsigned_of(dtype: Any) -> Any:
    """The unsigned integers of the same size as a float type."""
    return {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[jnp.dtype(dtype).itemsize]


def largest_reached(
    reached: Callable[[Array], Array],
    k: Array,
    unsigned: Any,
    leading: int | None = None,
    step: int = 4,
) -> Array:
    """The largest magnitude bits that at least k elements reach, some bits at a time.

    A round counts for all values of the next `step` bits how many elements reach them.
    On a GPU this takes as many kernels as it takes to try one of them.

    Args:
      reached: [..., 2^step - 1] ascending magnitude bits -> how many elements reach
        each of them.
      k: [...] uint32.
      unsigned: type of the bits.
      leading: number of leading bits that are found, a multiple of `step`; the others
        are zero. The first one is the sign bit, which is zero. None finds all.
      step: bits of a round, a power of two.

    Returns:
      [...] magnitude bits. Where k is zero, they are the largest that there are.
    """
    width = jnp.iinfo(unsigned).bits
    shape = (1,) * k.ndim + (-1,)
    digits = np.arange(1, 1 << step).astype(unsigned).reshape(shape)

    def body(i: Array, found: Array) -> Array:
        shift = (width - step - step * i).astype(unsigned)
        enough = reached(found[..., None] | (digits << shift)) >= k[..., None]
        # Fewer elements reach a larger magnitude: those that are enough come first.
        return found | (jnp.sum(enough, axis=-1, dtype=unsigned) << shift)

    rounds = min(leading or width, width) // step
    start = vary_like(jnp.zeros(k.shape, unsigned), k)
    found = jax.lax.fori_loop(0, rounds, body, start)
    return found & np.array(jnp.iinfo(unsigned).max >> 1, unsigned)


def reached_in_rows(bits: Array, magnitudes: Array) -> Array:
    """How many elements of each row reach each of some magnitudes.

    Args:
      bits: [rows, columns] magnitude bits.
      magnitudes: [rows, k] or [1, k] magnitude bits.

    Returns:
      [rows, k] uint32.

    Example:
      >>> bits = jnp.array([[5, 7, 1]], jnp.uint32)
      >>> reached_in_rows(bits, jnp.array([[2, 6]], jnp.uint32))
      Array([[2, 1]], dtype=uint32)
    """
    columns, count = bits.shape[1], magnitudes.shape[1]
    # Several counts share a word while they are added up: a CPU would otherwise store
    # the results of all comparisons.
    width = next(w for w in (8, 16, 32) if columns < 1 << w)
    together = 32 // width
    counts = []
    for first in range(0, count, together):
        each = [
            (bits >= magnitudes[:, i, None]).astype(jnp.uint32)
            << np.uint32(width * (i - first))
            for i in range(first, min(first + together, count))
        ]
        word = jnp.sum(functools.reduce(jnp.bitwise_or, each), axis=1, dtype=jnp.uint32)
        last = np.uint32((1 << width) - 1)
        counts += [(word >> np.uint32(width * i)) & last for i in range(len(each))]
    return jnp.stack(counts, axis=1)


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
    capacity = min(x.size, most + most // 2 + 64)
    threshold = _threshold(x, most, capacity, floor)
    candidates = _reaching(x, threshold, np.uint32(capacity), capacity)
    values = x.at[candidates].get(mode="fill", fill_value=0)
    # From here on only the candidates are searched, which takes almost no time.
    present = indices.count(indices.to_words(candidates < x.size))
    count = jnp.minimum(present, np.uint32(most))
    last = kth_largest(values, count)
    chosen = _reaching(values, last, count, most)
    places = candidates.at[chosen].get(mode="fill", fill_value=x.size)
    passed = indices.count(indices.to_words(_reach(x, floor)))
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
    beyond = indices.to_words(_reach(x, threshold + np.array(1, threshold.dtype)))
    on = indices.to_words(_reach(x, threshold)) & ~beyond
    on = indices.first(on, count - indices.count(beyond))
    return indices.places(beyond | on, most, absent=x.size)


def _threshold(x: Array, most: int, capacity: int, floor: Array) -> Array:
    """A threshold that between `most` and `capacity` elements reach, if there is one.

    Otherwise it is the floor, which fewer than `most` elements reach, or a threshold
    that more than `capacity` elements reach because many are equal to it.
    """

    class Search(NamedTuple):
        """The state of the bisection."""

        low: Array  # at least `most` elements reach it, or it is the floor
        high: Array  # fewer than `most` elements reach it
        probe: Array  # the threshold that is tried next
        counted: Array  # number of elements that reach `low`

    def searching(s: Search) -> Array:
        return (s.counted > capacity) & (s.high - s.low > 1)

    def step(s: Search) -> Search:
        found = indices.count(indices.to_words(_reach(x, s.probe)))
        enough = (found >= most) | (s.probe == floor)
        low = jnp.where(enough, s.probe, s.low)
        high = jnp.where(enough, s.high, s.probe)
        counted = jnp.where(enough, found, s.counted)
        return Search(low, high, low + (high - low) // 2, counted)

    # No magnitude has the sign bit. A smaller limit would lose a NaN with all bits set.
    top = jnp.asarray((jnp.iinfo(floor.dtype).max >> 1) + 1, floor.dtype)
    guess = jnp.maximum(_guess(x, most, capacity), floor)
    start = Search(floor, top, guess, jnp.uint32(x.size))
    return jax.lax.while_loop(searching, step, vary_like(start, (x, floor))).low


def _guess(x: Array, most: int, capacity: int) -> Array:
    """A threshold that `most` to `capacity` elements may reach, from a sample."""
    # The distance is odd, because a power of two may divide the number of channels, and
    # all samples would be of the same channel. A sample of 65,536 elements, or of one
    # in 33, estimates ranks up to a few percent.
    sample = x[:: min(33, x.size // 65536) | 1]
    wanted = min(most + (capacity - most) // 2, x.size) * sample.size // x.size
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
      >>> from jaxcomp.compressors._kit.segments import segments_of, to_rows
      >>> segments = segments_of([3, 1])  # rows of 512 elements
      >>> rows = to_rows([jnp.array([1.0, -3.0, 2.0]), jnp.ones(1)], segments)
      >>> largest_of_each(rows, segments, most=(2, 1)).places
      Array([  1,   2, 512], dtype=uint32)
    """
    total = sum(most)
    capacities = tuple(
        min(size, -(-(k + k // 2 + 64) // _CANDIDATES_WIDTH) * _CANDIDATES_WIDTH)
        for size, k in zip(segments.sizes, most, strict=True)
    )
    chosen = Segments(capacities, _CANDIDATES_WIDTH)
    limit = np.array(most, np.uint32) if count is None else count
    if rows.size <= _SHORT or 2 * sum(capacities) >= rows.size:
        bits, present = magnitude_bits(rows), np.array(segments.sizes, np.uint32)
        if floor is not None:
            present = _counts(bits >= segments.spread(floor), segments)
        taken = jnp.minimum(present, limit)
        words = _exactly(bits, segments, taken)
        return LargestOfEach(indices.places(words, total, absent=rows.size), taken)
    candidates, found = _candidates(rows, segments, chosen, most, floor)
    taken = jnp.minimum(found, limit)
    values = rows.reshape(-1).at[candidates].get(mode="fill", fill_value=0)
    bits = magnitude_bits(values).reshape(chosen.rows, chosen.width)
    words = _exactly(bits, chosen, taken)
    last = indices.places(words, total, absent=candidates.size)
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

    return largest_reached(
        lambda m: segments.sums(reached_in_rows(bits, m[segments.owners])),
        vary_like(k, bits),
        bits.dtype,
        leading,
        step,
    )


def reached_by_each(rows: Array, segments: Segments, floor: Array) -> Array:
    """How many elements of each tensor reach its floor, as [tensors] uint32.

    Args:
      rows: [rows, width] floats, from `to_rows`.
      segments: of the rows.
      floor: [tensors] magnitude bits, all above 0.
    """
    return _ones(_segment_reach(rows, segments, floor), segments)


def _candidates(
    rows: Array,
    segments: Segments,
    chosen: Segments,
    most: Sequence[int],
    floor: Array | None,
) -> tuple[Array, Array]:
    """Places of the candidates, in the rows of `chosen`, and the number of each."""
    capacities = np.array(chosen.sizes, np.uint32)
    threshold = _segment_thresholds(rows, segments, capacities, most, floor)
    beyond = _segment_reach(rows, segments, threshold + np.array(1, threshold.dtype))
    on = _segment_reach(rows, segments, threshold) & ~beyond
    space = jnp.asarray(capacities) - _ones(beyond, segments)
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
    return indices.places_of(flat, ranks.reshape(-1), absent=rows.size), counts


def _segment_thresholds(
    rows: Array,
    segments: Segments,
    capacities: np.ndarray,
    most: Sequence[int],
    floor: Array | None,
) -> Array:
    """For each tensor a threshold that `most` to `capacity` elements reach, if any.

    Otherwise it is the floor, or one that more elements reach because many are equal.
    """

    class Search(NamedTuple):
        """The state of the bisection."""

        low: Array  # at least `most` elements reach it, or it is the floor
        high: Array  # fewer than `most` elements reach it
        counted: Array  # number of elements that reach `low`

    wanted = np.array(most, np.uint32)

    def is_open(s: Search) -> Array:
        return (s.counted > capacities) & (s.high - s.low > 1)

    def searching(s: Search) -> Array:
        return jnp.any(is_open(s))

    def step(s: Search) -> Search:
        probe = s.low + (s.high - s.low) // 2
        found = _ones(_segment_reach(rows, segments, probe), segments)
        rises, falls = is_open(s) & (found >= wanted), is_open(s) & (found < wanted)
        low = jnp.where(rises, probe, s.low)
        counted = jnp.where(rises, found, s.counted)
        return Search(low, jnp.where(falls, probe, s.high), counted)

    low = _segment_guess(rows, segments, most)
    if floor is not None:
        low = jnp.maximum(low, floor)
    high = jnp.full_like(low, 1 << (jnp.iinfo(low.dtype).bits - 1))
    start = Search(low, high, _ones(_segment_reach(rows, segments, low), segments))
    return jax.lax.while_loop(searching, step, vary_like(start, rows)).low


def _segment_guess(rows: Array, segments: Segments, most: Sequence[int]) -> Array:
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
    return kth_largest_of_each(
        peaks, wanted, segments, _SEGMENT_GUESS_BITS, _GUESS_STEP
    )


def _exactly(bits: Array, segments: Segments, count: Array) -> Array:
    """A bitmap of the `count` largest of each tensor; of equal ones the first."""
    last = kth_largest_of_each(bits, count, segments)
    beyond = indices.to_words((bits > segments.spread(last)).reshape(-1))
    on = indices.to_words((bits >= segments.spread(last)).reshape(-1)) & ~beyond
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
    return indices.first_of_words(words, most - jnp.minimum(most, before))


def _segment_reach(rows: Array, segments: Segments, threshold: Array) -> Array:
    """[rows, width / 32]: the bitmap of the elements that reach their threshold."""
    rows, threshold = jax.lax.optimization_barrier((rows, threshold))
    mask = magnitude_bits(rows) >= segments.spread(threshold)
    return indices.to_words(mask.reshape(-1)).reshape(segments.rows, -1)


def _ones(words: Array, segments: Segments) -> Array:
    """Number of bits that are set, of each tensor."""
    counts = jax.lax.population_count(words)
    return segments.sums(jnp.sum(counts, axis=1, dtype=jnp.uint32))


def _counts(mask: Array, segments: Segments) -> Array:
    """Number of elements of a mask, of each tensor."""
    return segments.sums(jnp.sum(mask, axis=1, dtype=jnp.uint32))

"""Bitmaps: sets of places as bits, 32 to a word, and the way back to the places.

Sparse methods spend most of their time on finding the places where a mask is true. A
bitmap is computed in one pass over the vector and has one word for 32 of its elements,
so all further steps are cheap.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array
from jaxcomp.trees import vary_like

__all__ = [
    "count",
    "first",
    "first_of_words",
    "not_above",
    "places",
    "places_of",
    "to_bits",
    "to_words",
]


def to_words(mask: Array) -> Array:
    """The bitmap of a mask: place i is bit i % 32 of word i // 32.

    [n] bool becomes [ceil(n / 32)] uint32.

    Example:
      >>> to_words(jnp.array([True, False, True]))
      Array([5], dtype=uint32)
    """
    padded = jnp.pad(mask, (0, -mask.size % 32))
    octets = jnp.packbits(padded, bitorder="little").reshape(-1, 4)
    return jax.lax.bitcast_convert_type(octets, jnp.uint32)


def to_bits(words: Array, size: int) -> Array:
    """The inverse of `to_words`, as [size] uint8 of 0 and 1.

    Example:
      >>> to_bits(jnp.array([5], jnp.uint32), 3)
      Array([1, 0, 1], dtype=uint8)
    """
    octets = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)
    return jnp.unpackbits(octets, count=size, bitorder="little")


def count(words: Array) -> Array:
    """Number of bits that are set.

    Example:
      >>> count(jnp.array([5, 1], jnp.uint32))
      Array(3, dtype=uint32)
    """
    return jnp.sum(jax.lax.population_count(words), dtype=jnp.uint32)


def first(words: Array, most: Array) -> Array:
    """The bitmap of the first `most` bits that are set; all others are cleared.

    Example:
      >>> first(jnp.array([5, 7], jnp.uint32), jnp.uint32(3))
      Array([5, 1], dtype=uint32)
    """
    counts = jax.lax.population_count(words)
    before = _cumulative(counts) - counts
    return first_of_words(words, most - jnp.minimum(most, before))


def first_of_words(words: Array, most: Array) -> Array:
    """Of each word the first `most` bits that are set; all others are cleared.

    Args:
      words: bitmaps, of any shape.
      most: uint32, a number for each word.

    Example:
      >>> first_of_words(jnp.array([5, 7], jnp.uint32), jnp.array([1, 2], jnp.uint32))
      Array([1, 3], dtype=uint32)
    """
    # The bits below the first one that is too many; the whole word if there is none.
    limit = _place_of_bit(words, most)
    kept = words & ((np.uint32(1) << limit) - np.uint32(1))
    return jnp.where(jax.lax.population_count(words) <= most, words, kept)


def places(words: Array, most: int, absent: int) -> Array:
    """Places of the first `most` bits that are set, in ascending order.

    Args:
      words: the bitmap.
      most: length of the result.
      absent: fills the rest of the result if fewer bits are set.

    Returns:
      [most] uint32.

    Example:
      >>> places(jnp.array([5, 1], jnp.uint32), most=4, absent=64)
      Array([ 0,  2, 32, 64], dtype=uint32)
    """
    return places_of(words, jax.lax.iota(jnp.uint32, most), absent)


def places_of(words: Array, ranks: Array, absent: int) -> Array:
    """Places of the set bits that follow `ranks` other set bits.

    Args:
      words: the bitmap.
      ranks: [k] uint32.
      absent: the result if no more bits than the rank are set.

    Returns:
      [k] uint32.

    Example:
      >>> words, ranks = jnp.array([5, 1], jnp.uint32), jnp.array([2, 0, 3], jnp.uint32)
      >>> places_of(words, ranks, absent=64)
      Array([32,  0, 64], dtype=uint32)
    """
    counts = jax.lax.population_count(words)
    ends = _cumulative(counts)
    # The bit with rank r is in the first word at whose end the count exceeds r.
    # On a GPU each round of a loop starts several kernels, and steps that are written
    # one after the other share them. On a CPU the loop is faster.
    owner = jax.lax.platform_dependent(
        ends, ranks, cpu=functools.partial(not_above, at_once=1), default=not_above
    )
    owner = jnp.minimum(owner, np.uint32(words.size - 1))
    within = ranks - (ends[owner] - counts[owner])
    found = owner * np.uint32(32) + _place_of_bit(words[owner], within)
    return jnp.where(ranks < ends[-1], found, np.uint32(absent))


def not_above(ascending: Array, limits: Array, at_once: int | None = None) -> Array:
    """How many entries of an ascending vector are not above each limit, by bisection.

    Args:
      ascending: [n] uint32.
      limits: [k] uint32.
      at_once: how many steps the body of the loop has; None writes out all of them.

    Returns:
      [k] uint32; n or more if no entry is above the limit.

    Example:
      >>> ascending = jnp.array([1, 1, 4], jnp.uint32)
      >>> not_above(ascending, jnp.array([0, 1, 3], jnp.uint32))
      Array([0, 2, 2], dtype=uint32)
    """
    steps = ascending.size.bit_length()

    def step(i: Array, below: Array) -> Array:
        probe = below + (np.uint32(1) << (steps - 1 - i).astype(jnp.uint32))
        entry = ascending.at[probe - np.uint32(1)].get(mode="clip")
        return jnp.where(entry <= limits, probe, below)

    start = vary_like(jnp.zeros_like(limits), (ascending, limits))
    return jax.lax.fori_loop(0, steps, step, start, unroll=at_once or steps)


def _cumulative(counts: Array) -> Array:
    """Inclusive cumulative sums, by rows: XLA does not vectorise one long sum."""
    rows = jnp.pad(counts, (0, -counts.size % 1024)).reshape(-1, 1024)
    totals = jnp.sum(rows, axis=1, dtype=jnp.uint32)
    before = jnp.cumsum(totals) - totals
    sums = jnp.cumsum(rows, axis=1) + before[:, None]
    return sums.reshape(-1)[: counts.size]


def _place_of_bit(words: Array, ranks: Array) -> Array:
    """Place, 0 to 31, of the set bit that follows `ranks` other set bits, by bisection.

    If a word has no more than `ranks` bits set, the result has no meaning.
    """
    place = jnp.zeros_like(words)
    for half in (16, 8, 4, 2, 1):
        low = words & np.uint32((1 << half) - 1)
        below = jax.lax.population_count(low)
        is_high = ranks >= below
        ranks = jnp.where(is_high, ranks - below, ranks)
        words = jnp.where(is_high, words >> np.uint32(half), low)
        place += jnp.where(is_high, np.uint32(half), np.uint32(0))
    return place

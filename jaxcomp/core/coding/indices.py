"""Sorted indices as Elias-Fano codes or plain integers, and the bitmaps under them."""

import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array


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


Code = Literal["auto", "elias_fano", "plain"]
CODES = get_args(Code)


class EliasFano(NamedTuple):
    """Ascending places: their low bits as they are, their high bits as a bitmap."""

    low: Array  # [ceil(l k / 32)] uint32: bit 0 of all places, then bit 1, ...
    high: Array  # [ceil((k + (n - 1 >> l) + 1) / 32)] uint32


def index_dtype(size: int) -> Any:
    """The narrowest unsigned dtype for the places of `size` elements."""
    if size <= 1 << 16:
        return jnp.uint16
    if size <= 1 << 32:
        return jnp.uint32
    raise ValueError(f"{size} elements do not fit 32-bit indices: use scope 'bucketed'")


def encode(places: Array, limit: int, code: str = "auto") -> Array | EliasFano:
    """Code ascending places below `limit`.

    Args:
      places: [k] ascending integers, which may be equal.
      limit: a number above all places.
      code: one of `CODES`; "auto" takes the smaller of the two codes.

    Example:
      >>> places = jnp.array([3, 500, 999], jnp.uint32)
      >>> encode(places, 1000, "plain").dtype
      dtype('uint16')
      >>> decode(encode(places, 1000, "elias_fano"), 1000, 3)
      Array([  3, 500, 999], dtype=uint32)
    """
    if code == "auto":
        kinds = ("plain", "elias_fano")
        code = min(kinds, key=lambda kind: coded_bits(limit, places.size, kind))
    if code == "plain":
        return places.astype(index_dtype(limit))
    places = places.astype(jnp.uint32)
    bits, words = _sizes(limit, places.size)
    planes = places[None, :] >> jax.lax.iota(jnp.uint32, bits)[:, None]
    planes &= np.uint32(1)
    low = to_words(planes.reshape(-1) == 1)
    steps = (places >> np.uint32(bits)) + jax.lax.iota(jnp.uint32, places.size)
    ones = np.uint32(1) << (steps % np.uint32(32))
    high = jnp.zeros(words, jnp.uint32)
    # No two places have the same bit, so adding a bit sets it.
    return EliasFano(low, high.at[steps // np.uint32(32)].add(ones))


def decode(coded: Array | EliasFano, limit: int, count: int) -> Array:
    """The inverse of `encode`, as [count] uint32."""
    if not isinstance(coded, EliasFano):
        return coded.astype(jnp.uint32)
    bits, _ = _sizes(limit, count)
    steps = places(coded.high, count, absent=0)
    high = (steps - jax.lax.iota(jnp.uint32, count)) << np.uint32(bits)
    if bits == 0:
        return high
    planes = to_bits(coded.low, bits * count).reshape(bits, count)
    planes = planes.astype(jnp.uint32) << jax.lax.iota(jnp.uint32, bits)[:, None]
    return high | jnp.sum(planes, axis=0)


def coded_bits(limit: int, count: int, code: str = "auto") -> int:
    """Bits of the result of `encode`.

    Example:
      >>> coded_bits(1_000_000, 1000, "plain"), coded_bits(1_000_000, 1000)
      (32000, 12000)
    """
    bits, high = _sizes(limit, count)
    found = {"elias_fano": 32 * (-(-bits * count // 32) + high)}
    if code != "elias_fano":
        found["plain"] = count * jnp.iinfo(index_dtype(limit)).bits
    return found.get(code, min(found.values()))


def _sizes(limit: int, count: int) -> tuple[int, int]:
    """Low bits of each place, floor(log2(n / k)), and words of the bitmap of the rest.

    One more low bit for each place would add more than it saves.
    """
    low = max(0, (limit // count).bit_length() - 1)
    return low, -(-(count + ((limit - 1) >> low) + 1) // 32)

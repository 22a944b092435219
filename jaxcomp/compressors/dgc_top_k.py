"""The top-k of Deep Gradient Compression: a threshold from a sample of the vector."""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import selection, sparse
from jaxcomp.compressors._kit.magnitudes import magnitude_bits
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.compressors._kit.selection import (
    kth_largest_of_each,
    largest_of_each,
    reached_by_each,
)
from jaxcomp.compressors._kit.sparse import Capped, Keep
from jaxcomp.core import prng
from jaxcomp.core.coding import indices as bitmaps
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.specs import Range, method
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array, Compressor, Spec, State

_WIDTH = 64  # of the rows of samples


class ThresholdLimits(NamedTuple):
    """For each tensor, when its threshold is right."""

    fewest: Sequence[int]  # 0 where any number is right
    most: Sequence[int]
    lower: float  # factor on a threshold that fewer than `fewest` elements reach
    upper: float | None  # and on one that more than `most` reach; None: that is right
    rounds: int


class Thresholds(NamedTuple):
    """The state of the search."""

    values: Array  # [tensors] magnitudes
    passed: Array  # [tensors] uint32: how many elements reach them
    moves: Array  # []


def sampled_of_each(
    rows: Array,
    segments: Segments,
    keys: Array,
    strides: Sequence[int],
    tops: Sequence[int],
    strided: bool,
) -> Array:
    """For each tensor the smallest of its `top` largest samples.

    Args:
      rows: [rows, width] of the tensors.
      segments: of the rows.
      keys: of the tensors.
      strides: of the samples; the result has no meaning where the stride is 1.
      tops: of the samples.
      strided: whether samples have a fixed distance, or random places.
    """
    counts = tuple(
        1 if stride == 1 else size // stride + strided
        for size, stride in zip(segments.sizes, strides, strict=True)
    )
    chosen = Segments(counts, _WIDTH)
    seeds = jax.vmap(prng.seed_of)(keys)
    number, sizes = chosen.places_in_tensor, np.array(segments.sizes, np.uint32)
    if strided:
        start = prng.high_product(seeds[:, 0], jnp.array(strides, jnp.uint32))
        distance = chosen.spread(np.array(strides, np.uint32))
        places = chosen.spread(start) + number * distance
    else:
        words = prng.words_at(number, *(chosen.spread(seeds[:, i]) for i in range(2)))
        limits = jnp.broadcast_to(chosen.spread(sizes), words.shape)
        places = prng.high_product(words, limits)
    is_sample = number < chosen.spread(np.array(counts, np.uint32))
    is_sample &= places < chosen.spread(sizes)
    first = chosen.spread(segments.starts * np.uint32(segments.width))
    places = jnp.where(is_sample, first + places, np.uint32(rows.size))
    samples = rows.reshape(-1).at[places].get(mode="fill", fill_value=0)
    ranks = jnp.array(tops, jnp.uint32)
    found = kth_largest_of_each(magnitude_bits(samples), ranks, chosen)
    return jax.lax.bitcast_convert_type(found, rows.dtype)


def adapted_of_each(
    rows: Array, segments: Segments, start: Array, limits: ThresholdLimits
) -> Thresholds:
    """Thresholds after all changes; those that are right do not change."""
    fewest, most = (
        np.array(counts, np.uint32) for counts in (limits.fewest, limits.most)
    )
    largest = jnp.finfo(start.dtype).max

    def search(values: Array, moves: Array) -> Thresholds:
        bits = floors_of(values)
        counted = reached_by_each(rows, segments, jnp.maximum(bits, 1))
        # Every element reaches zero, and padding does too.
        sizes = np.array(segments.sizes, np.uint32)
        return Thresholds(values, jnp.where(bits == 0, sizes, counted), moves)

    def is_wrong(s: Thresholds) -> Array:
        too_few = s.passed < fewest
        return too_few if limits.upper is None else too_few | (s.passed > most)

    def searching(s: Thresholds) -> Array:
        return jnp.any(is_wrong(s)) & (s.moves < limits.rounds)

    def step(s: Thresholds) -> Thresholds:
        raised = limits.lower if limits.upper is None else limits.upper
        factor = jnp.where(s.passed < fewest, limits.lower, raised)
        moved = jnp.minimum(s.values * factor.astype(start.dtype), largest)
        return search(jnp.where(is_wrong(s), moved, s.values), s.moves + 1)

    first = vary_like(search(start, jnp.int32(0)), rows)
    return jax.lax.while_loop(searching, step, first)


def floors_of(thresholds: Array) -> Array:
    """Magnitude bits of thresholds; a NaN is taken for infinity, which NaN reaches."""
    infinity = magnitude_bits(jnp.array(jnp.inf, thresholds.dtype))
    return jnp.minimum(magnitude_bits(thresholds), infinity)


Sample = Annotated[float, Range(above=0, most=1, says="a fraction in (0, 1]")]
# Up to this number, samples are sorted, which makes a smaller program.
_FEW = 1 << 12
# More samples are first compared in groups of this size.
_GROUP = 16


class Sampling(NamedTuple):
    """How a vector is sampled, which follows from its size."""

    wanted: int  # k
    stride: int  # distance between samples; 1 means that no sample is needed
    samples: int  # s
    top: int  # the threshold is the smallest of this number of largest samples


class _Search(NamedTuple):
    """The state of the search for a threshold."""

    threshold: Array
    words: Array  # bitmap of the elements that reach the threshold
    passed: Array  # how many these are
    moves: Array  # how often the threshold was changed


@method("keep")
def dgc_top_k(
    name: str,
    keep: Keep = 0.001,
    sample: Sample = 0.01,
    strided: bool = True,
    upper: Annotated[float, Range(least=1)] = 1.3,
    lower: Annotated[float, Range(above=0, most=1)] = 0.8,
    rounds: Annotated[int, Range(least=0)] = 10,
    resample: bool = True,
    index: Code = "auto",
) -> Compressor:
    """Keep about k = ceil(keep * n) of the largest elements, by a sampled threshold.

    The threshold t is the ceil(keep * s)-th largest magnitude of s samples. While fewer
    than lower * k elements reach t, it is multiplied by `lower`. If more than upper * k
    reach it, the k largest elements are selected exactly; with resample=False t is
    multiplied by `upper` instead. After `rounds` changes the search ends. At most
    floor(upper * k) elements are sent; if more reach t, then the largest of them. The
    field `passed` of the payload says how many reached the last t, and the figure
    `overflow` how many of them found no room. In a vector that is too short for
    sampling the exact top k is found.

    The elements that are sent are always the largest ones. With a strided sample and
    `resample` these are at least ceil(keep * s), so |x - C(x)|^2 <= (1 - delta) |x|^2
    with delta = ceil(keep * s) / n. A random sample may contain one element many times,
    so delta is 1/n. A threshold that was raised may be reached by no element, so delta
    is 0. The method is biased: use it with a memory.

    Args:
      keep: fraction of the elements that is KEPT, in (0, 1].
      sample: fraction of the elements that is sampled, in (0, 1]; at least 2 / keep
        elements are.
      strided: sample at a fixed distance from a random start; otherwise at random
        places with replacement.
      upper: limit of the number sent as a multiple of k, at least 1.
      lower: number sent, as a multiple of k, below which t is lowered, in (0, 1].
      rounds: how often the threshold may be changed.
      resample: what happens if too many elements reach t; see above.
      index: how places are coded; see `top_k`.

    Example:
      >>> c = dgc_top_k(keep=0.1)
      >>> x = jax.random.normal(jax.random.key(0), (1000,))
      >>> payload, _ = c.compress(x, (), jax.random.key(1))
      >>> payload.values.shape, bool(payload.passed >= 80)
      ((130,), True)

    References:
      Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for
      Distributed Training, arXiv:1712.01887, 2018.
    """

    def room(size: int) -> int:
        return min(size, math.floor(upper * sampling_of(size, keep, sample).wanted))

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        sampling, most = sampling_of(flat.size, keep, sample), room(flat.size)
        if sampling.stride == 1:
            chosen = selection.largest(flat, sampling.wanted)
            absent = (0, most - sampling.wanted)
            places = jnp.pad(chosen.places, absent, constant_values=flat.size)
            passed = chosen.taken
        else:
            samples = _samples(flat, sampling, strided, prng.seed_of(key))
            found = adapted(flat, _last_of_largest(samples, sampling.top))
            floor = floors_of(found.threshold)
            wanted = sampling.wanted if resample else most
            places = sparse.largest_of(flat, found.words, floor, most, wanted).places
            passed = found.passed
        values, indices = sparse.send(flat, places, index)
        return Capped(values, indices, passed), state

    def adapted(flat: Array, start: Array) -> _Search:
        """The threshold after all changes."""
        wanted, most = sampling_of(flat.size, keep, sample).wanted, room(flat.size)
        fewest = math.ceil(lower * wanted)
        # A threshold of infinity could not be lowered any more.
        limit = jnp.finfo(start.dtype).max

        def search(threshold: Array, moves: Array) -> _Search:
            words = sparse.reach(flat, floors_of(threshold))
            return _Search(threshold, words, bitmaps.count(words), moves)

        def searching(s: _Search) -> Array:
            wrong = s.passed < np.uint32(fewest)
            if not resample:
                wrong |= s.passed > np.uint32(most)
            return wrong & (s.moves < rounds)

        def step(s: _Search) -> _Search:
            factor = jnp.where(s.passed < np.uint32(fewest), lower, upper)
            moved = s.threshold * factor.astype(start.dtype)
            return search(jnp.minimum(moved, limit), s.moves + 1)

        first = vary_like(search(start, jnp.int32(0)), flat)
        return jax.lax.while_loop(searching, step, first)

    def choose(rows: Array, segments: Segments, keys: Array) -> Capped:
        samplings = [sampling_of(size, keep, sample) for size in segments.sizes]
        most = [room(size) for size in segments.sizes]
        is_whole = np.array([s.stride == 1 for s in samplings])
        strides, tops = zip(*((s.stride, s.top) for s in samplings), strict=True)
        start = sampled_of_each(rows, segments, keys, strides, tops, strided)
        fewest = [
            0 if s.stride == 1 else math.ceil(lower * s.wanted) for s in samplings
        ]
        enough = [
            n if s.stride == 1 else m
            for n, s, m in zip(segments.sizes, samplings, most, strict=True)
        ]
        raised = None if resample else upper
        limits = ThresholdLimits(fewest, enough, lower, raised, rounds)
        found = adapted_of_each(rows, segments, start, limits)
        wanted = np.array([s.wanted for s in samplings], np.uint32)
        room_of = np.array(most, np.uint32)
        fits = (found.passed <= room_of) & ~is_whole
        cut_to = np.where(is_whole | resample, wanted, room_of)
        floors = jnp.where(is_whole, 0, floors_of(found.values))
        count = jnp.where(fits, room_of, cut_to)
        chosen = largest_of_each(rows, segments, most, jnp.maximum(floors, 1), count)
        values, indices = sparse.send_rows(rows, segments, chosen.places, index)
        return Capped(values, indices, jnp.where(is_whole, wanted, found.passed))

    def contraction(spec: Spec) -> float | None:
        sampling = sampling_of(spec.size, keep, sample)
        if sampling.stride == 1:
            return sampling.wanted / spec.size
        if not resample:
            return 0.0
        return (sampling.top if strided else 1) / spec.size

    figures = (sparse.overflow_figure(room),)
    one = sparse.sparsifier(name, compress, room, contraction, figures)
    each = (sparse.overflow_of_each(room),)
    return sparse.with_segments(one, choose, index, each)


def sampling_of(size: int, keep: float, sample: float) -> Sampling:
    """How a vector of this size is sampled.

    The stride is odd. A power of two could divide the number of channels, and all
    samples would then be of the same channel.

    Example:
      >>> sampling_of(25_000_000, keep=0.001, sample=0.01)
      Sampling(wanted=25000, stride=97, samples=257731, top=258)
    """
    fewest = math.ceil(2 / keep)
    enough = max(math.ceil(size * sample), fewest)
    stride = 1
    if size > fewest and sample < 1:
        stride = math.ceil(size / enough / 32) * 32 + 1
        while size // stride < enough:
            stride -= 8
    samples = size // stride
    return Sampling(math.ceil(size * keep), stride, samples, math.ceil(samples * keep))


def _samples(flat: Array, sampling: Sampling, strided: bool, seed: Array) -> Array:
    """Magnitudes of the samples."""
    if strided:
        start = prng.high_product(seed[0], jnp.uint32(sampling.stride))
        # From some starts one more sample lies within the vector. From the others it
        # lies beyond the end and counts as zero, which changes no threshold.
        steps = jax.lax.iota(jnp.uint32, sampling.samples + 1)
        places = start + steps * np.uint32(sampling.stride)
        return jnp.abs(flat.at[places].get(mode="fill", fill_value=0))
    words = prng.words(seed, sampling.samples)
    places = prng.high_product(words, jnp.full_like(words, flat.size))
    return jnp.abs(flat.at[places].get(mode="promise_in_bounds"))


def _last_of_largest(samples: Array, top: int) -> Array:
    """The smallest of the `top` largest magnitudes."""
    if samples.size <= _FEW:
        return jax.lax.top_k(samples, top)[0][-1]
    bits = magnitude_bits(samples)

    def kth_largest(bits: Array) -> Array:
        floats = jax.lax.bitcast_convert_type(bits, samples.dtype)
        return selection.kth_largest(floats, jnp.uint32(top))

    groups = -(-samples.size // _GROUP)
    if groups > 2 * top:
        # The `top` groups with the largest maxima contain the `top` largest elements.
        padded = jnp.pad(bits, (0, groups * _GROUP - samples.size))
        columns = padded.reshape(_GROUP, groups)
        peaks = jnp.max(columns, axis=0)
        last = kth_largest(peaks)
        beyond = bitmaps.to_words(peaks > last)
        on = bitmaps.to_words(peaks == last)
        on = bitmaps.first(on, np.uint32(top) - bitmaps.count(beyond))
        bits = columns[:, bitmaps.places(beyond | on, top, absent=0)].reshape(-1)
    return jax.lax.bitcast_convert_type(kth_largest(bits), samples.dtype)

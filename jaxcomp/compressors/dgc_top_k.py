"""The top-k of Deep Gradient Compression: a threshold from a sample of the vector."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import selection, thresholds
from jaxcomp.compressors._kit.making import Keep, sparsifier
from jaxcomp.compressors._kit.segments import Segments, send, send_rows
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.compressors._kit.thresholds import Capped
from jaxcomp.core import prng
from jaxcomp.core.coding import indices
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.specs import Range, method
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array, Compressor, Spec, State

_WIDTH = 64  # of the rows of samples
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
    """The state of the search for thresholds: of one tensor, or of several."""

    thresholds: Array  # magnitudes
    passed: Array  # uint32: how many elements reach them
    words: Any  # of one tensor the bitmap of these
    moves: Array  # [] how often thresholds were changed


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

    rule = _Rule(keep, sample, strided, upper, lower, rounds, resample, index)
    return sparsifier(
        name,
        rule.compress,
        rule.compress_rows,
        rule.capacity,
        rule.contraction,
        index,
        (thresholds.overflow_figure(rule.capacity),),
    )


class _Rule(NamedTuple):
    """The functions of the method; `dgc_top_k` explains its arguments."""

    keep: float
    sample: float
    strided: bool
    upper: float
    lower: float
    rounds: int
    resample: bool
    code: Code

    def sampling(self, size: int) -> Sampling:
        return sampling_of(size, self.keep, self.sample)

    def capacity(self, size: int) -> int:
        return min(size, math.floor(self.upper * self.sampling(size).wanted))

    def contraction(self, spec: Spec) -> float | None:
        sampling = self.sampling(spec.size)
        if sampling.stride == 1:
            return sampling.wanted / spec.size
        if not self.resample:
            return 0.0
        return (sampling.top if self.strided else 1) / spec.size

    def compress(self, x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        sampling, most = self.sampling(flat.size), self.capacity(flat.size)
        if sampling.stride == 1:
            chosen = selection.largest(flat, sampling.wanted)
            absent = (0, most - sampling.wanted)
            places = jnp.pad(chosen.places, absent, constant_values=flat.size)
            passed = chosen.taken
        else:
            samples = _samples(flat, sampling, self.strided, prng.seed_of(key))
            start = _last_of_largest(samples, sampling.top)

            def reached(threshold: Array) -> tuple[Array, Array]:
                words = thresholds.reach(flat, floors_of(threshold))
                return indices.count(words), words

            fewest = math.ceil(self.lower * sampling.wanted)
            found = self.adapted(start, reached, fewest, most, flat)
            floor = floors_of(found.thresholds)
            wanted = sampling.wanted if self.resample else most
            chosen = thresholds.largest_of(flat, found.words, floor, most, wanted)
            places, passed = chosen.places, found.passed
        values, coded = send(flat, places, self.code)
        return Capped(values, coded, passed), state

    def adapted(
        self,
        start: Array,
        reached: Callable[[Array], tuple[Array, Any]],
        fewest: Any,
        most: Any,
        like: Array,
    ) -> _Search:
        """Thresholds after all changes; those that are right do not change.

        Args:
          start: magnitudes.
          reached: thresholds -> how many elements reach them, and their bitmap.
          fewest: fewer elements than this are too few.
          most: more than this are too many.
          like: what the tensors are taken from.
        """
        least, enough = (np.array(counts, np.uint32) for counts in (fewest, most))
        # A threshold of infinity could not be lowered any more.
        largest = jnp.finfo(start.dtype).max

        def is_wrong(s: _Search) -> Array:
            too_few = s.passed < least
            return too_few if self.resample else too_few | (s.passed > enough)

        def searching(s: _Search) -> Array:
            return jnp.any(is_wrong(s)) & (s.moves < self.rounds)

        def step(s: _Search) -> _Search:
            factor = jnp.where(s.passed < least, self.lower, self.upper)
            moved = jnp.minimum(s.thresholds * factor.astype(start.dtype), largest)
            thresholds = jnp.where(is_wrong(s), moved, s.thresholds)
            return _Search(thresholds, *reached(thresholds), s.moves + 1)

        first = _Search(start, *reached(start), jnp.int32(0))
        return jax.lax.while_loop(searching, step, vary_like(first, like))

    def compress_rows(self, rows: Array, segments: Segments, keys: Array) -> Capped:
        samplings = [self.sampling(size) for size in segments.sizes]
        most = [self.capacity(size) for size in segments.sizes]
        is_whole = np.array([s.stride == 1 for s in samplings])
        strides, tops = zip(*((s.stride, s.top) for s in samplings), strict=True)
        start = sampled_of_each(rows, segments, keys, strides, tops, self.strided)
        # Where no sample is needed, any number is right.
        fewest = [
            0 if s.stride == 1 else math.ceil(self.lower * s.wanted) for s in samplings
        ]
        enough = [
            n if s.stride == 1 else m
            for n, s, m in zip(segments.sizes, samplings, most, strict=True)
        ]
        sizes = np.array(segments.sizes, np.uint32)

        def reached(thresholds: Array) -> tuple[Array, tuple[()]]:
            bits = floors_of(thresholds)
            counted = selection.reached_by_each(rows, segments, jnp.maximum(bits, 1))
            # Every element reaches zero, and padding does too.
            return jnp.where(bits == 0, sizes, counted), ()

        found = self.adapted(start, reached, fewest, enough, rows)
        wanted = np.array([s.wanted for s in samplings], np.uint32)
        limit = np.array(most, np.uint32)
        fits = (found.passed <= limit) & ~is_whole
        cut_to = np.where(is_whole | self.resample, wanted, limit)
        floors = jnp.where(is_whole, 0, floors_of(found.thresholds))
        count = jnp.where(fits, limit, cut_to)
        floors = jnp.maximum(floors, 1)
        chosen = selection.largest_of_each(rows, segments, most, floors, count)
        values, coded = send_rows(rows, segments, chosen.places, self.code)
        return Capped(values, coded, jnp.where(is_whole, wanted, found.passed))


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
    found = selection.kth_largest_of_each(magnitude_bits(samples), ranks, chosen)
    return jax.lax.bitcast_convert_type(found, rows.dtype)


def floors_of(thresholds: Array) -> Array:
    """Magnitude bits of thresholds; a NaN is taken for infinity, which NaN reaches."""
    infinity = magnitude_bits(jnp.array(jnp.inf, thresholds.dtype))
    return jnp.minimum(magnitude_bits(thresholds), infinity)


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
        beyond = indices.to_words(peaks > last)
        on = indices.to_words(peaks == last)
        on = indices.first(on, np.uint32(top) - indices.count(beyond))
        bits = columns[:, indices.places(beyond | on, top, absent=0)].reshape(-1)
    return jax.lax.bitcast_convert_type(kth_largest(bits), samples.dtype)

"""Deep Gradient Compression's selection: a threshold from a sample of the vector."""

import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise, selection
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding import bitmaps
from jaxcomp.coding.indices import Code
from jaxcomp.compressors import _capped, _sparse
from jaxcomp.compressors._capped import Capped
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep
from jaxcomp.specs import Range, method
from jaxcomp.trees import vary_like

__all__ = ["Plan", "dgc_top_k", "plan"]

Sample = Annotated[float, Range(above=0, most=1, says="a fraction in (0, 1]")]
# Few samples are sorted, a smaller program. Of more, so many at once are compared.
_FEW = 1 << 12
_GROUP = 16


class Plan(NamedTuple):
    """What follows from a vector's size."""

    wanted: int  # k
    stride: int  # between samples; 1: all elements are looked at
    samples: int
    top: int  # the threshold is the smallest of so many largest samples


class _Search(NamedTuple):
    threshold: Array
    words: Array  # bitmap of the elements that reach it
    passed: Array
    moves: Array


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

    The threshold t is the smallest of the ceil(keep * s) largest of s samples. While
    fewer than lower * k elements reach it, t is multiplied by `lower`, for at most
    `rounds` rounds. If more than upper * k do, the k largest are taken, or, without
    `resample`, t is multiplied by `upper` as well, round by round. At most
    floor(upper * k) are sent, of more the largest. The payload's `passed` tells how
    many reached t in the end, the figure `overflow` how many too many these were.
    Vectors too short to sample get the exact top k.

    What is sent are always the largest elements, and with a strided sample and
    `resample` at least ceil(keep * s) of them, so |x - C(x)|^2 <= (1 - delta) |x|^2
    with delta = ceil(keep * s) / n. A random sample may draw one element many times:
    delta = 1/n. A raised t may leave none: no bound. Biased: use a memory.

    Args:
      keep: fraction of the elements KEPT, in (0, 1].
      sample: fraction of the elements sampled, in (0, 1]; at least 2 / keep elements.
      strided: sample every so many elements from a random start, else at random with
        replacement.
      upper: at least 1. How far above k the number sent may lie.
      lower: in (0, 1]. How far below.
      rounds: how often the threshold may be moved.
      resample: what to do when too many reach it; see above.
      index: how places are sent; see `top_k`.

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
        return min(size, math.floor(upper * plan(size, keep, sample).wanted))

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        form, most = plan(flat.size, keep, sample), room(flat.size)
        if form.stride == 1:
            chosen = selection.largest(flat, form.wanted)
            absent = (0, most - form.wanted)
            places = jnp.pad(chosen.places, absent, constant_values=flat.size)
            passed = chosen.taken
        else:
            samples = _samples(flat, form, strided, noise.seed_of(key))
            found = adapted(flat, _last_of_largest(samples, form.top))
            floor = _bits(found.threshold)
            wanted = form.wanted if resample else most
            places = _capped.largest_of(flat, found.words, floor, most, wanted).places
            passed = found.passed
        values, indices = _sparse.send(flat, places, index)
        return Capped(values, indices, passed), state

    def adapted(flat: Array, start: Array) -> _Search:
        """The threshold, once it has been moved."""
        wanted, most = plan(flat.size, keep, sample).wanted, room(flat.size)
        fewest = math.ceil(lower * wanted)
        # Infinity could not be lowered any more.
        limit = jnp.finfo(start.dtype).max

        def search(threshold: Array, moves: Array) -> _Search:
            words = _capped.reach(flat, _bits(threshold))
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

    def contraction(spec: Spec) -> float | None:
        size = math.prod(spec.shape)
        form = plan(size, keep, sample)
        if form.stride == 1:
            return form.wanted / size
        if not resample:
            return 0.0
        return (form.top if strided else 1) / size

    return compressor(
        name,
        compress=compress,
        decompress=_sparse.decompress,
        accumulate=_sparse.accumulate,
        ideal_bits=lambda spec: _sparse.ideal_bits(spec, room(math.prod(spec.shape))),
        contraction=contraction,
        unbiased=False,
        support=lambda spec: room(math.prod(spec.shape)),
        figures=(_capped.overflow_figure(room),),
    )


def plan(size: int, keep: float, sample: float) -> Plan:
    """How a vector is sampled.

    The stride is odd, so that it falls in step with no power of two of channels.

    Example:
        >>> plan(25_000_000, keep=0.001, sample=0.01)
        Plan(wanted=25000, stride=97, samples=257731, top=258)
    """
    fewest = math.ceil(2 / keep)
    enough = max(math.ceil(size * sample), fewest)
    stride = 1
    if size > fewest and sample < 1:
        stride = math.ceil(size / enough / 32) * 32 + 1
        while size // stride < enough:
            stride -= 8
    samples = size // stride
    return Plan(math.ceil(size * keep), stride, samples, math.ceil(samples * keep))


def _samples(flat: Array, form: Plan, strided: bool, seed: Array) -> Array:
    """Magnitudes of the sample."""
    if strided:
        start = noise.high_product(seed[0], jnp.uint32(form.stride))
        steps = jax.lax.iota(jnp.uint32, form.samples + 1)
        places = start + steps * np.uint32(form.stride)
        # One more than planned where the vector has it. Zero is no larger than any.
        return jnp.abs(flat.at[places].get(mode="fill", fill_value=0))
    words = noise.words(seed, form.samples)
    places = noise.high_product(words, jnp.full_like(words, flat.size))
    return jnp.abs(flat.at[places].get(mode="promise_in_bounds"))


def _last_of_largest(samples: Array, top: int) -> Array:
    """The smallest of the `top` largest magnitudes."""
    if samples.size <= _FEW:
        return jax.lax.top_k(samples, top)[0][-1]
    bits = selection.magnitude_bits(samples)
    groups = -(-samples.size // _GROUP)
    if groups > 2 * top:
        # The `top` groups of largest peaks have the `top` largest elements in them.
        padded = jnp.pad(bits, (0, groups * _GROUP - samples.size))
        columns = padded.reshape(_GROUP, groups)
        peaks = jnp.max(columns, axis=0)
        last = _kth_largest(peaks, top)
        beyond = bitmaps.to_words(peaks > last)
        on = bitmaps.to_words(peaks == last)
        on = bitmaps.first(on, np.uint32(top) - bitmaps.count(beyond))
        bits = columns[:, bitmaps.places(beyond | on, top, absent=0)].reshape(-1)
    return jax.lax.bitcast_convert_type(_kth_largest(bits, top), samples.dtype)


def _kth_largest(bits: Array, k: int) -> Array:
    """The largest number that k magnitudes reach, bit by bit from the top."""
    width = jnp.iinfo(bits.dtype).bits

    def step(i: Array, found: Array) -> Array:
        raised = found | (jnp.ones_like(found) << (width - 2 - i).astype(bits.dtype))
        reached = bitmaps.count(bitmaps.to_words(bits >= raised))
        return jnp.where(reached >= np.uint32(k), raised, found)

    start = vary_like(jnp.zeros((), bits.dtype), bits)
    return jax.lax.fori_loop(0, width - 1, step, start)


def _bits(threshold: Array) -> Array:
    """Magnitude bits to reach: those of infinity for NaN, so that both pass always."""
    infinity = selection.magnitude_bits_of(math.inf, threshold.dtype)
    bits = selection.magnitude_bits(threshold)
    return jnp.minimum(bits, bits.dtype.type(infinity))

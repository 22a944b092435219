"""Shared scale: all workers round to multiples of one unit, and add packed integers."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.selection import magnitude_bits
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import bit_width
from jaxcomp.core.specs import Clip, Count, Range, SpecError, method
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, State, Tree
from jaxcomp.exchanges._common import measure
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, plans


@method(given=2)
def shared_scale(
    name: str,
    plan: Plan,
    axis: Axis,
    levels: Annotated[int, Range(1, 127)] = 1,
    clip: Clip | None = None,
    bucket: Count | None = None,
) -> Exchange:
    """Round to multiples of a unit that is the same on all workers, and add these.

    level_i = floor(g_i / u + r), with r uniform in [0, 1), and mean =
    (u / N) sum_i level_i. The unit is u = (1/s) max_i |g_i|, over the elements of all
    workers, by one small all-gather. Levels are added by an all-reduce of words that
    hold 32 // b levels of b = ceil(log2(2 s N + 1)) bits each; the sum of N levels fits
    into b bits, so no carry reaches the next level. Traffic grows with log N only. With
    s = 1, the default, this is TernGrad with a shared scaler. It is unbiased without
    `clip`.

    Args:
      plan: which tensors share a scale; its compressor is not used.
      axis: the mapped axis.
      levels: s.
      clip: each worker first clips its elements to this many times their root mean
        square; None does not clip. The paper takes 2.5.
      bucket: elements that share a scale; None for the whole vector.

    References:
      Wen et al., TernGrad, arXiv:1705.07878, 2017 (scaler sharing). Li et al., THC:
      Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression,
      arXiv:2302.08545, 2024.
    """

    way = _SharedScale(plan, axis, levels, clip, bucket)
    return Exchange(
        name,
        init=lambda tree: (),
        average=way.average,
        axis=axis,
        ignores_compressor=True,
    )


class _SharedScale(NamedTuple):
    """The functions of the exchange; `shared_scale` explains its arguments."""

    plan: Plan
    axis: Axis
    levels: int
    clip: float | None
    bucket: int | None

    def scales_of(self, vector: Array) -> Array:
        """The largest magnitudes of this worker, after clipping; [buckets]."""
        peaks = buckets.peaks(vector, self.bucket)
        if self.clip is None:
            return peaks
        factors = buckets.factors(peaks)
        norms = buckets.norms(vector, self.bucket, factors)
        counts = buckets.counts(vector.size, self.bucket)
        # A bucket with a NaN or an infinity has the factor NaN: then the peak is taken.
        limit = self.clip * norms / jnp.sqrt(counts) / factors
        return jnp.where(limit < peaks, limit, peaks)

    def average(self, tree: Tree, state: State, key: Array) -> Averaged:
        axis, levels, bucket = self.axis, self.levels, self.bucket
        spec = spec_of(tree)
        groups = plans.groups_of(self.plan, tree)
        vectors = plans.to_vectors(tree, groups)
        count = collectives.size(axis)
        bits = bit_width(2 * levels * count + 1)
        if bits > 16:
            raise SpecError(
                f"{levels} levels of {count} workers need {bits} bits each, half of "
                "what they replace; take fewer levels, or two_phase"
            )
        # As integers, because a maximum of floats may drop a NaN.
        own = magnitude_bits(jnp.concatenate([self.scales_of(v) for v in vectors]))
        highest = jnp.max(collectives.gather(own, axis), axis=0)
        shared = jax.lax.bitcast_convert_type(highest, jnp.float32)
        borders = np.cumsum([buckets.rows(v.size, bucket) for v in vectors])[:-1]
        peaks = jnp.split(shared, borders)

        seed_key = jax.random.fold_in(key, collectives.index(axis))
        symbols = []
        for i, (vector, peak) in enumerate(zip(vectors, peaks, strict=True)):
            scale = buckets.factors(peak)
            own_key = jax.random.fold_in(seed_key, groups[i].number)
            draws = prng.uniform(prng.seed_of(own_key), vector.shape)
            units = peak * scale / levels
            levels_of = buckets.to_levels(vector, bucket, scale, units, levels, draws)
            symbols.append(levels_of)

        def decoded(symbols: list[Array], workers: int) -> Tree:
            restored = []
            for own, peak in zip(symbols, peaks, strict=True):
                unit, most = _unit(peak, levels) / workers, levels * workers
                restored.append(buckets.from_levels(own, bucket, unit, most))
            return plans.to_tree(tuple(restored), groups, spec)

        flat = jnp.concatenate([s.astype(jnp.uint32) for s in symbols])
        words = collectives.total(_pack_fields(flat, bits), axis)
        sizes = np.cumsum([v.size for v in vectors])[:-1]
        sums = jnp.split(_unpack_fields(words, bits, flat.size), sizes)
        mean = decoded(sums, count)
        sent = decoded([s.astype(jnp.uint32) for s in symbols], 1)
        return Averaged(mean, sent, state, measure(tree, sent))


def _unit(peaks: Array, levels: int) -> Array:
    """The unit of each bucket; NaN if the bucket has a NaN or an infinity.

    Levels are integers, which cannot be either.
    """
    return jnp.where(jnp.isfinite(peaks), peaks / levels, jnp.nan)


def _pack_fields(symbols: Array, bits: int) -> Array:
    """Pack symbols into words, 32 // bits of them in each.

    Example:
      >>> _pack_fields(jnp.array([1, 2, 3], jnp.uint32), bits=16)
      Array([131073,      3], dtype=uint32)
    """
    fields = 32 // bits
    words = -(-symbols.size // fields)
    padded = jnp.pad(symbols, (0, words * fields - symbols.size))
    shifts = np.arange(fields, dtype=np.uint32)[None] * np.uint32(bits)
    shifted = padded.reshape(words, fields) << shifts
    return jnp.sum(shifted, axis=1, dtype=jnp.uint32)


def _unpack_fields(words: Array, bits: int, size: int) -> Array:
    """The inverse of `_pack_fields`, of words or of a sum of them."""
    fields = 32 // bits
    shifts = np.arange(fields, dtype=np.uint32)[None] * np.uint32(bits)
    symbols = (words[:, None] >> shifts) & np.uint32((1 << bits) - 1)
    return symbols.reshape(-1)[:size]

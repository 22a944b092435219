"""Random-k: send random elements, and a seed in place of their indices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.payloads import Seeded
from jaxcomp.compressors import _segmented
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep, add_at, kept
from jaxcomp.segments import Segments
from jaxcomp.specs import method
from jaxcomp.trees import spec_of, wide_spec

__all__ = ["random_k", "random_subset"]


@method("keep", "unbiased")
def random_k(name: str, keep: Keep = 0.01, unbiased: bool = False) -> Compressor:
    """Keep k = round(keep * n) elements at random places, at least one.

    C(x)_i = c x_i for i in S, else 0, where every place is in S with probability k/n.
    The biased method has c = 1 and E|x - C(x)|^2 = (1 - k/n) |x|^2, the unbiased one
    c = n/k and E|x - C(x)|^2 = (n/k - 1) |x|^2. All places follow from a seed of 64
    random bits, which is sent instead of them. Workers that share a key choose the same
    places (`aligned`).

    Args:
      keep: fraction of the elements that is KEPT, in (0, 1].
      unbiased: multiply by n/k. Leave this off if a memory is used.

    Example:
      >>> c = random_k(keep=0.5)
      >>> payload, _ = c.compress(jnp.arange(1.0, 5.0), (), jax.random.key(0))
      >>> payload.values.shape, payload.seed.shape
      ((2,), (2,))

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018. Wangni et al.,
      Gradient Sparsification for Communication-Efficient Distributed Optimization,
      arXiv:1710.09854, 2017.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Seeded, State]:
        flat = x.reshape(-1)
        k = kept(flat.size, keep)
        seed = noise.seed_of(key)
        places = random_subset(seed, flat.size, k)
        values = flat.at[places].get(mode="promise_in_bounds")
        if unbiased:
            values = _scale(values, flat.size / k)
        return Seeded(values, seed), state

    def accumulate(total: Array, payload: Seeded) -> Array:
        places = random_subset(payload.seed, total.size, payload.values.size)
        return add_at(
            total, places, payload.values, "promise_in_bounds", unique_indices=True
        )

    def contraction(spec: Spec) -> float | None:
        ratio = spec.size / kept(spec.size, keep)
        delta = 2 - ratio if unbiased else 1 / ratio
        return delta if delta > 0 else None

    one = compressor(
        name,
        compress,
        contraction=contraction,
        accumulate=accumulate,
        support=lambda spec: kept(spec.size, keep),
        unbiased=unbiased,
        aligned=True,
    )

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Seeded:
        seeds = jax.vmap(noise.seed_of)(keys)
        places = _subsets(seeds, segments, keep)
        values = rows.reshape(-1)[segments.in_rows(places)]
        if unbiased:
            counts = np.array([kept(n, keep) for n in segments.sizes])
            ratios = np.array(segments.sizes, np.float32) / counts.astype(np.float32)
            values = _scale(values, jnp.asarray(ratios)[_owners(counts)])
        return Seeded(values, seeds)

    def read(payload: Seeded, segments: Segments) -> tuple[Array, Array]:
        return _subsets(payload.seed, segments, keep), payload.values

    return one._replace(
        segmented=_segmented.of_vector(one, compress_rows, read, ascending=False)
    )


def _scale(values: Array, by: float | Array) -> Array:
    """The values times a factor, which rounded to bfloat16 would cause a bias."""
    wide = values.astype(wide_spec(spec_of(values)).dtype)
    return (wide * by).astype(values.dtype)


def random_subset(seed: Array, size: int, count: int) -> Array:
    """`count` distinct places below `size`, all equally likely, in time O(count).

    The places are divided into `count` strata of almost equal width, one place is drawn
    in each of them, and then all are rotated by one random offset. The strata make the
    places distinct. The widths may differ by one; due to the rotation the probability
    of every place is count/size nevertheless, up to a relative error of 2^-32, the best
    that 64 random bits allow. A random permutation would have to sort all places. Mean
    and variance of the method depend on these probabilities alone.

    Args:
      seed: [2] uint32.
      size: number of places.
      count: number of places drawn.

    Returns:
      [count] uint32, all different, in no order.

    Example:
      >>> places = random_subset(jnp.array([1, 2], jnp.uint32), size=10, count=10)
      >>> sorted(places.tolist())
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    strata, numbers = jax.lax.iota(jnp.uint32, count), _Strata.of(size, count)
    return _rotated(strata, noise.words(seed, count), seed, numbers)


class _Strata(NamedTuple):
    """How the places of a vector are divided, as numbers or as arrays of them."""

    size: Any
    width: Any  # of most strata
    wider: Any  # so many strata, the first ones, have width + 1

    @classmethod
    def of(cls, size: int | np.ndarray, count: int | np.ndarray) -> "_Strata":
        numbers = size, size // count, size % count
        return cls(*(np.asarray(x, np.uint32) for x in numbers))


def _rotated(strata: Array, words: Array, seed: Array, of: _Strata) -> Array:
    """The places that random words draw in strata, all rotated."""
    starts = strata * of.width + jnp.minimum(strata, of.wider)
    widths = of.width + (strata < of.wider).astype(jnp.uint32)
    # A draw of 32 bits is not exactly uniform in a wide stratum; the rotation is.
    places = starts + noise.high_product(words, widths)
    rotation = _scaled(seed, of.size)
    # The sum may exceed 2^32, so it is wrapped by comparison, not by remainder.
    room = of.size - rotation
    return jnp.where(places >= room, places - room, places + rotation)


def _subsets(seeds: Array, segments: Segments, keep: float) -> Array:
    """`random_subset` of each tensor, as places in the vector that joins them.

    Args:
      seeds: [tensors, 2] uint32.
      segments: of the tensors.
      keep: fraction of the elements of each of them.
    """
    sizes = np.array(segments.sizes)
    counts = np.array([kept(size, keep) for size in segments.sizes])
    owners = _owners(counts)

    def of_values(numbers: np.ndarray) -> Array:
        return jnp.asarray(numbers.astype(np.uint32))[owners]

    strata = jax.lax.iota(jnp.uint32, int(counts.sum()))
    strata -= of_values(np.cumsum(counts) - counts)
    seed = seeds[owners]
    words = noise.words_at(strata, seed[:, 0], seed[:, 1])
    numbers = _Strata(*map(of_values, _Strata.of(sizes, counts)))
    places = _rotated(strata, words, seed.T, numbers)
    return places + of_values(np.cumsum(sizes) - sizes)


def _owners(counts: np.ndarray) -> Array:
    """For each value the tensor that it belongs to.

    Example:
      >>> _owners(np.array([2, 1]))
      Array([0, 0, 1], dtype=int32)
    """
    ends = jnp.asarray(np.cumsum(counts).astype(np.uint32))
    values = jax.lax.iota(jnp.uint32, int(counts.sum()))
    # Without a loop, and without a constant as long as the message.
    return jnp.searchsorted(ends, values, side="right", method="scan_unrolled")


def _scaled(seed: Array, size: Any) -> Array:
    """floor(s size / 2^64), where s is the seed as one number: an offset below `size`.

    It is uniform up to size / 2^64. It depends almost only on the first word of the
    seed. Whatever that is, the second word makes the draws of `noise.words` uniform, so
    the draws do not depend on the offset.
    """
    wide = jnp.stack([jnp.asarray(size, jnp.uint32)] * 2)
    whole = noise.high_product(seed, wide)
    carry = seed[0] * wide[0] + whole[1] < whole[1]
    return whole[0] + carry.astype(jnp.uint32)

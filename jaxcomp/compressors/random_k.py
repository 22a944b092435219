"""Random-k: a seed instead of indices."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.payloads import Seeded
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep, kept
from jaxcomp.specs import method
from jaxcomp.trees import spec_of, wide_spec

__all__ = ["random_k", "random_subset"]


@method("keep", "unbiased")
def random_k(name: str, keep: Keep = 0.01, unbiased: bool = False) -> Compressor:
    """Keep k = round(keep * n) elements at random places, at least one.

    C(x)_i = c x_i for i in S, else 0, where every place is in S with probability k/n.
    Biased: c = 1 and E|x - C(x)|^2 = (1 - k/n) |x|^2. Unbiased: c = n/k and
    E|x - C(x)|^2 = (n/k - 1) |x|^2. The places are drawn from 64 random bits, which are
    sent in their stead; workers that share a key share the places (`aligned`).

    Args:
      keep: fraction of the elements KEPT, in (0, 1].
      unbiased: scale by n/k. With a memory leave it off.

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
        values = payload.values.astype(total.dtype)
        added = (
            total.reshape(-1)
            .at[places]
            .add(values, mode="promise_in_bounds", unique_indices=True)
        )
        return added.reshape(total.shape)

    def decompress(payload: Seeded, spec: Spec) -> Array:
        return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)

    def ideal_bits(spec: Spec) -> float:
        k = kept(math.prod(spec.shape), keep)
        return k * jnp.dtype(spec.dtype).itemsize * 8 + 64

    def contraction(spec: Spec) -> float | None:
        n = math.prod(spec.shape)
        ratio = n / kept(n, keep)
        delta = 2 - ratio if unbiased else 1 / ratio
        return delta if delta > 0 else None

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=True,
        support=lambda spec: kept(math.prod(spec.shape), keep),
    )


def _scale(values: Array, by: float) -> Array:
    """Multiply in at least float32: n/k rounded to bfloat16 would itself be a bias."""
    wide = values.astype(wide_spec(spec_of(values)).dtype)
    return (wide * by).astype(values.dtype)


def random_subset(seed: Array, size: int, count: int) -> Array:
    """`count` distinct places below `size`, each place equally likely, in O(count).

    One place is drawn in each of `count` strata of (almost) equal width, then all are
    rotated by one random offset. The strata keep places distinct; the rotation makes
    the chance of every place count/size although the widths may differ by one, to one
    part in 2^32, as 64 random bits cannot be divided better. A random permutation would
    cost a sort of all `size` places. The means and second moments that the laws need
    depend on these chances alone.

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
    width, wider = divmod(size, count)  # the first `wider` strata have width + 1
    strata = jax.lax.iota(jnp.uint32, count)
    starts = strata * np.uint32(width) + jnp.minimum(strata, np.uint32(wider))
    widths = np.uint32(width) + (strata < wider).astype(jnp.uint32)
    # Draws of 32 bits are not quite even in wide strata. The rotation makes up for it.
    places = starts + noise.high_product(noise.words(seed, count), widths)
    rotation = _scaled(seed, size)
    # places + rotation may pass 2^32, so wrap by comparison instead of by remainder.
    room = np.uint32(size) - rotation
    return jnp.where(places >= room, places - room, places + rotation)


def _scaled(seed: Array, size: int) -> Array:
    """floor(s size / 2^64), s the seed as one number.

    Even to size / 2^64. Given the first word the second still makes every draw of
    `noise.words` even, so that the draws do not depend on the rotation.
    """
    wide = jnp.full((2,), size, jnp.uint32)
    whole = noise.high_product(seed, wide)
    carry = seed[0] * wide[0] + whole[1] < whole[1]
    return whole[0] + carry.astype(jnp.uint32)

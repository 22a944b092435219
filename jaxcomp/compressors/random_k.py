"""Random-k: send random elements, and a seed in place of their indices."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.making import Keep, compressor, kept
from jaxcomp.compressors._kit.segments import add_at
from jaxcomp.core import prng
from jaxcomp.core.coding.payloads import Seeded
from jaxcomp.core.specs import method
from jaxcomp.core.trees import spec_of, wide_spec
from jaxcomp.core.types import Array, Compressor, Spec, State


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
        seed = prng.seed_of(key)
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

    return compressor(
        name,
        compress,
        contraction=contraction,
        accumulate=accumulate,
        support=lambda spec: kept(spec.size, keep),
        unbiased=unbiased,
        aligned=True,
    )


def _scale(values: Array, by: float) -> Array:
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
    width, wider = divmod(size, count)  # the first `wider` strata have width + 1
    strata = jax.lax.iota(jnp.uint32, count)
    starts = strata * np.uint32(width) + jnp.minimum(strata, np.uint32(wider))
    widths = np.uint32(width) + (strata < wider).astype(jnp.uint32)
    # A draw of 32 bits is not exactly uniform in a wide stratum; the rotation is.
    places = starts + prng.high_product(prng.words(seed, count), widths)
    rotation = _scaled(seed, size)
    # The sum may exceed 2^32, so it is wrapped by comparison, not by remainder.
    room = np.uint32(size) - rotation
    return jnp.where(places >= room, places - room, places + rotation)


def _scaled(seed: Array, size: int) -> Array:
    """floor(s size / 2^64), where s is the seed as one number: an offset below `size`.

    It is uniform up to size / 2^64. It depends almost only on the first word of the
    seed. Whatever that is, the second word makes the draws of `prng.words` uniform, so
    the draws do not depend on the offset.
    """
    wide = jnp.full((2,), size, jnp.uint32)
    whole = prng.high_product(seed, wide)
    carry = seed[0] * wide[0] + whole[1] < whole[1]
    return whole[0] + carry.astype(jnp.uint32)

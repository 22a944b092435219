"""Random-k: a seed instead of indices."""

import math

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State, compressor, spec_of, wide_spec
from jaxcomp.compressors.sparse import check_keep, kept, show_keep
from jaxcomp.payloads import Seeded, index_dtype

__all__ = ["random_k", "random_subset"]


def random_k(keep: float = 0.01, unbiased: bool = False) -> Compressor:
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
    check_keep(keep)
    if not isinstance(unbiased, bool):
        raise ValueError(f"unbiased is True or False, not {unbiased!r}")

    def compress(x: Array, state: State, key: Array) -> tuple[Seeded, State]:
        flat = x.reshape(-1)
        k = kept(flat.size, keep)
        seed = jax.random.bits(key, (2,), jnp.uint32)
        values = flat[random_subset(seed, flat.size, k)]
        if unbiased:
            values = _scale(values, flat.size / k)
        return Seeded(values, seed), state

    def accumulate(total: Array, payload: Seeded) -> Array:
        indices = random_subset(payload.seed, total.size, payload.values.size)
        flat = (
            total.reshape(-1)
            .at[indices]
            .add(payload.values.astype(total.dtype), unique_indices=True)
        )
        return flat.reshape(total.shape)

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
        f"random_k(keep={show_keep(keep)}, unbiased={unbiased})",
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=True,
    )


def _scale(values: Array, by: float) -> Array:
    """Multiply in at least float32: n/k rounded to bfloat16 would itself be a bias."""
    wide = values.astype(wide_spec(spec_of(values)).dtype)
    return (wide * by).astype(values.dtype)


def random_subset(seed: Array, size: int, count: int) -> Array:
    """`count` distinct places below `size`, each place equally likely, in O(count).

    One place is drawn in each of `count` strata of (almost) equal width, then all are
    rotated by one random offset. The strata keep places distinct; the rotation makes
    the chance of every place exactly count/size although the widths may differ by one.
    A random permutation would cost a sort of all `size` places. The means and second
    moments that the laws need depend on these chances alone.

    Args:
      seed: [2] uint32.
      size: number of places.
      count: number of places drawn.

    Returns:
      [count] indices, all different.
    """
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    place_key, rotation_key = jax.random.split(key)
    width, wider = divmod(size, count)  # the first `wider` strata have width + 1
    strata = jnp.arange(count, dtype=jnp.uint32)
    starts = strata * jnp.uint32(width) + jnp.minimum(strata, jnp.uint32(wider))
    widths = jnp.uint32(width) + (strata < wider).astype(jnp.uint32)
    # A remainder of 32 bits is not quite even for wide strata. The rotation, drawn from
    # 64 bits, makes the chance of every place even whatever the draws within strata.
    places = starts + jax.random.bits(place_key, (count,), jnp.uint32) % widths
    rotation = jax.random.randint(rotation_key, (), 0, size, jnp.uint32)
    # places + rotation may pass 2^32, so wrap by comparison instead of by remainder.
    room = jnp.uint32(size) - rotation
    rotated = jnp.where(places >= room, places - room, places + rotation)
    return rotated.astype(index_dtype(size))

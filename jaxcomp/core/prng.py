"""Fast random bits: a hash of the place in the vector and of a seed.

JAX's generator takes 30 times as long as the rounding that uses its numbers. Here word
i is h(h(i xor a) + b + h(a)) with a seed (a, b), which comes from JAX's generator, and
a mixing function h. The compiler computes these words inside the loop that uses them,
so they are never stored. They are not suited for cryptography. tests/test_noise.py
tests what compressors need: uniform bits that are independent along a vector and
between seeds.

References:
  Steele et al., Fast splittable pseudorandom number generators, OOPSLA 2014 (the idea).
  The multipliers were found by a search for the least bias (hash-prospector).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.types import Array


def seed_of(key: Array) -> Array:
    """A seed of two words. A payload may contain it instead of what is drawn from it.

    Example:
      >>> seed_of(jax.random.key(0)).shape
      (2,)
    """
    return jax.random.bits(key, (2,), jnp.uint32)


def words(seed: Array, size: int) -> Array:
    """`size` random words. A larger size continues the words of a smaller one.

    Args:
      seed: [2] uint32.
      size: number of words, at most 2^32.

    Returns:
      [size] uint32.

    Example:
      >>> words(jnp.array([1, 2], jnp.uint32), 3).dtype
      dtype('uint32')
    """
    return words_at(jax.lax.iota(jnp.uint32, size), seed[0], seed[1])


def words_at(places: Array, a: Array, b: Array) -> Array:
    """The words at some places, each of a seed (a, b) of its own.

    Example:
      >>> places, a, b = jnp.array([0, 2], jnp.uint32), jnp.uint32(1), jnp.uint32(2)
      >>> words_at(places, a, b) == words(jnp.array([1, 2], jnp.uint32), 3)[places]
      Array([ True,  True], dtype=bool)
    """
    # Without h(a), seeds that differ only in a would give the same words in another
    # order.
    return _mix(_mix(places ^ a) + (b + _mix(a)))


def uniform(seed: Array, shape: tuple[int, ...]) -> Array:
    """Uniform multiples of 2^-24 in [0, 1), the finest even spacing that float32 has.

    Example:
      >>> u = uniform(jnp.array([1, 2], jnp.uint32), (1000,))
      >>> bool(u.min() >= 0), bool(u.max() < 1)
      (True, True)
    """
    return fraction(words(seed, math.prod(shape))).reshape(shape)


def fraction(words: Array) -> Array:
    """A number in [0, 1) of the leading 24 bits of each word.

    Example:
      >>> fraction(jnp.array([0, 1 << 31], jnp.uint32))
      Array([0. , 0.5], dtype=float32)
    """
    return (words >> np.uint32(8)).astype(jnp.float32) * np.float32(2**-24)


def high_product(a: Array, b: Array) -> Array:
    """floor(a b / 2^32), which for a random word a is almost uniform below b.

    It multiplies halves of words, because `jax.lax.mulhi` does not compile inside a
    mapped step (jax 0.10.2).

    Args:
      a: uint32.
      b: uint32 of the same shape.

    Example:
      >>> high_product(jnp.array([1 << 31], jnp.uint32), jnp.array([7], jnp.uint32))
      Array([3], dtype=uint32)
    """
    half, low = np.uint32(16), np.uint32(0xFFFF)
    # No sum exceeds 32 bits: (2^16 - 1)^2 + 2 (2^16 - 1) = 2^32 - 1.
    first = (a >> half) * (b & low) + (((a & low) * (b & low)) >> half)
    second = (a & low) * (b >> half) + (first & low)
    return (a >> half) * (b >> half) + (first >> half) + (second >> half)


def _mix(x: Array) -> Array:
    """A bijection of 32-bit words in which every input bit affects every output bit."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))

"""A random rotation from a seed, uniformly distributed over all rotations.

Only a uniform (Haar) rotation treats all directions alike. The usual product of random
signs and a Hadamard matrix maps a vector with one huge element to few different values,
and rounding then loses or exaggerates the contribution of the small elements.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core import prng
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array

# Larger triangles are inverted by halves, which takes less arithmetic. For smaller ones
# a loop takes less time to compile.
_HALVED = 64

# Otherwise GPUs would round the factors to 10 bits.
multiply = functools.partial(jnp.matmul, precision="highest")


def haar(seed: Array, size: int) -> Array:
    """An orthogonal matrix, uniformly distributed: H_1 ... H_n with random signs.

    H_i is a reflection that maps the i-th axis to a random direction among the axes i
    to n. With the unit normals of all reflections in V, their product is I - V T V^T,
    where the inverse of T is half the identity plus the strict upper triangle of V^T V.
    This takes a few matrix products instead of n reflections in turn.

    Args:
      seed: [2] uint32.
      size: number of rows and of columns. The time is O(size^3).

    Returns:
      [size, size] float32, orthogonal up to about 1e-6.

    Example:
      >>> q = haar(jnp.array([1, 2], jnp.uint32), 3)
      >>> bool(jnp.allclose(q @ q.T, jnp.eye(3), atol=1e-5))
      True

    References:
      Stewart, The Efficient Generation of Random Orthogonal Matrices with an
      Application to Condition Estimators, SIAM Journal on Numerical Analysis 17, 1980.
      Joffrain et al., Accumulating Householder Transformations, Revisited, ACM
      Transactions on Mathematical Software 32, 2006.
    """
    words = prng.words(seed, size * size).reshape(size, size)
    directions = jnp.tril(_gaussian(words))
    diagonal = jnp.diag(directions)
    norms = jnp.sqrt(jnp.sum(jnp.square(directions), axis=0))
    # The sign avoids a normal that is a difference of almost equal numbers.
    normals = directions + jnp.diag(jnp.where(diagonal < 0, -norms, norms))
    normals /= jnp.sqrt(2.0 * norms * (norms + jnp.abs(diagonal)))[None, :]
    identity = jnp.eye(size, dtype=jnp.float32)
    inverse = jnp.triu(multiply(normals.T, normals), 1) + 0.5 * identity
    product = identity - multiply(normals, multiply(_inverse(inverse), normals.T))
    # With this sign only half of the directions are reached, so a random sign follows.
    # The lowest bit of a word was not used before.
    return jnp.where(words[:1] & np.uint32(1) == 1, -product, product)


def _inverse(triangle: Array) -> Array:
    """The inverse of an upper triangular matrix with 1/2 on the diagonal, by halves.

    LAPACK's solver is as fast, but takes up to a hundred times as long under vmap,
    where its threads and those of XLA wait for each other.
    """
    size = triangle.shape[0]
    if size > _HALVED:
        half = size // 2
        first = _inverse(triangle[:half, :half])
        second = _inverse(triangle[half:, half:])
        corner = -multiply(multiply(first, triangle[:half, half:]), second)
        return jnp.block([[first, corner], [jnp.zeros_like(corner.T), second]])

    def newton(i: Array, inverse: Array) -> Array:
        return 2.0 * inverse - multiply(inverse, multiply(triangle, inverse))

    # The error of the guess is strictly upper triangular, and each step squares it, so
    # it becomes zero after log2(size) steps.
    steps = (size - 1).bit_length()
    guess = vary_like(2.0 * jnp.eye(size, dtype=jnp.float32), triangle)
    return jax.lax.fori_loop(0, steps, newton, guess)


def _gaussian(words: Array) -> Array:
    """Normal numbers up to a common factor, none of them zero."""
    # Odd multiples of 2^-24 are uniform in (-1, 1) and never zero.
    odd = (words >> np.uint32(8)).astype(jnp.float32) * 2.0 - np.float32(2.0**24 - 1)
    return jax.lax.erf_inv(odd * np.float32(2.0**-24))

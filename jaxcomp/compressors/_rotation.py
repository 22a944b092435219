"""A random rotation from a seed, uniform over all of them.

Only a uniform (Haar) rotation treats every direction alike. The usual product of random
signs and Hadamard matrices sends a vector with one huge element to a few places of a
lattice, and what the small elements contribute is then rounded away or exaggerated.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array
from jaxcomp.trees import vary_like

__all__ = ["haar", "multiply"]

# Beyond it, halving costs less arithmetic; up to it, a loop is compiled faster.
_HALVED = 64

# GPUs would round the factors to 10 bits.
multiply = functools.partial(jnp.matmul, precision="highest")


def haar(seed: Array, size: int) -> Array:
    """An orthogonal matrix, uniformly distributed: H_1 ... H_n with random signs.

    H_i reflects the i-th axis to a random direction among axes i to n. The product is
    I - V T V^T with the unit normals of the reflections in V, where the inverse of T is
    half the identity plus the upper part of V^T V: a few matrix products instead of n
    reflections one after the other.

    Args:
      seed: [2] uint32.
      size: number of rows and of columns; the work is O(size^3).

    Returns:
      [size, size] float32, orthogonal to some 1e-6.

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
    words = noise.words(seed, size * size).reshape(size, size)
    directions = jnp.tril(_gaussian(words))
    diagonal = jnp.diag(directions)
    norms = jnp.sqrt(jnp.sum(jnp.square(directions), axis=0))
    # Away from the axis, lest the normal be a difference of almost equal numbers.
    normals = directions + jnp.diag(jnp.where(diagonal < 0, -norms, norms))
    normals /= jnp.sqrt(2.0 * norms * (norms + jnp.abs(diagonal)))[None, :]
    identity = jnp.eye(size, dtype=jnp.float32)
    inverse = jnp.triu(multiply(normals.T, normals), 1) + 0.5 * identity
    product = identity - multiply(normals, multiply(_inverse(inverse), normals.T))
    # A reflection away from the axis reaches one half of the directions. The lowest bit
    # of a word has no part in them.
    return jnp.where(words[:1] & np.uint32(1) == 1, -product, product)


def _inverse(triangle: Array) -> Array:
    """The inverse of an upper triangular matrix with 1/2 on the diagonal, by halves.

    LAPACK's solver takes no longer on its own, but up to a hundred times as long under
    vmap: its threads and those of XLA wait for each other.
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

    # What is wrong with the guess lies above the diagonal, and each step squares it:
    # in the end there is no room left above.
    steps = (size - 1).bit_length()
    guess = vary_like(2.0 * jnp.eye(size, dtype=jnp.float32), triangle)
    return jax.lax.fori_loop(0, steps, newton, guess)


def _gaussian(words: Array) -> Array:
    """Normal numbers up to a common factor, none of them zero: odd 2^-24 to uniform."""
    odd = (words >> np.uint32(8)).astype(jnp.float32) * 2.0 - np.float32(2.0**24 - 1)
    return jax.lax.erf_inv(odd * np.float32(2.0**-24))

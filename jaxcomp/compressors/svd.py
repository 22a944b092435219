"""Truncated SVD: send the best approximation of low rank."""

import functools

from jaxcomp.compressors._kit import matrices
from jaxcomp.compressors._kit.making import compressor
from jaxcomp.compressors._kit.matrices import Factors
from jaxcomp.core.coding.payloads import Dense
from jaxcomp.core.specs import Count, method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method("rank")
def svd(name: str, rank: Count = 4) -> Compressor:
    """Send the `rank` largest singular triples of the tensor as a matrix.

    C(A) = A V V^T, where V has the first r right singular vectors. No other matrix of
    rank r is nearer to A, and |A - C(A)|^2 <= (1 - r / min(m, n)) |A|^2. The method is
    biased: use it with a memory. The last axis of the tensor becomes the columns of A,
    and a vector becomes a nearly square matrix. A tensor with at most r (m + n)
    elements is sent as it is.

    If min(m, n) is at least 96 (r + 4), a randomised search replaces the full
    decomposition, and the bound holds in the mean over keys. The approximation then
    has the same energy as the best one, up to rounding errors, or up to 0.2 % if
    singular values hardly differ, as in large Gaussian matrices.

    Args:
      rank: r, the number of triples.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> c = svd(rank=1)
      >>> x = jnp.outer(jnp.arange(8.0), jnp.ones(6))
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> payload.values.shape, payload.basis.shape
      ((1, 8), (1, 6))
      >>> bool(jnp.allclose(c.decompress(payload, x), x, atol=1e-5))
      True

    References:
      Eckart and Young, The approximation of one matrix by another of lower rank,
      Psychometrika 1, 1936. Musco and Musco, Randomized Block Krylov Methods for
      Stronger and Faster Approximate Singular Value Decomposition, arXiv:1504.05477,
      2015.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Factors | Dense, State]:
        if not matrices.pays(x.shape, rank):
            return Dense(x), state
        matrix, factor = matrices.in_range(matrices.fold(x))
        left, right = matrices.leading(matrix, rank, key)
        return matrices.send(left, right, factor, x), state

    def contraction(spec: Spec) -> float | None:
        pays = matrices.pays(spec.shape, rank)
        return rank / matrices.short_side(spec.shape) if pays else 1.0

    return compressor(
        name,
        compress,
        functools.partial(matrices.decompress, bounded=True),
        ideal_bits=lambda spec: matrices.ideal_bits(spec, rank),
        contraction=contraction,
    )

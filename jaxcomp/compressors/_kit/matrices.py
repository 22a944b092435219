"""Functions of the low-rank methods: tensors as matrices, and singular vectors.

This file is not a method. A tensor becomes a matrix A of m rows and n <= m columns. A
method chooses orthonormal vectors v_i of n elements and sends the pairs (A v_i, v_i).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.compressors._kit.rotation import multiply
from jaxcomp.core.coding.payloads import Dense
from jaxcomp.core.trees import spec_of, vary_like, wide_spec
from jaxcomp.core.types import Array, Payload, Spec


class Factors(NamedTuple):
    """A sum of r outer products."""

    values: Array  # [r, m] A v_i / c; see `_balance`
    basis: Array  # [r, n] v_i


class SingularValues(NamedTuple):
    """All n singular triples of a matrix, as rows, in no particular order."""

    lengths: Array  # [n] singular values s_i = |A v_i|
    left: Array  # [n, m] A v_i
    right: Array  # [n, n] v_i


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the matrix that a tensor becomes.

    The last axis becomes the columns and all others the rows, because a convolution of
    Flax has the axes (height, width, in, out). Axes of length one are left out. A
    vector becomes a nearly square matrix, with zeros at the end.

    Example:
      >>> sides((3, 3, 16, 32)), sides((10, 1)), sides(())
      ((144, 32), (4, 3), (1, 1))
    """
    axes = [length for length in shape if length > 1]
    if len(axes) > 1:
        return math.prod(axes[:-1]), axes[-1]
    size = math.prod(axes)
    rows = math.isqrt(size - 1) + 1
    return rows, -(-size // rows)


def short_side(shape: tuple[int, ...]) -> int:
    """The largest rank that the matrix of a tensor can have."""
    return min(sides(shape))


def pays(shape: tuple[int, ...], rank: int) -> bool:
    """Whether `rank` pairs of vectors have fewer elements than the tensor.

    Example:
      >>> pays((64,), rank=4), pays((64,), rank=3)
      (False, True)
    """
    return rank * sum(sides(shape)) < math.prod(shape)


def fold(x: Array) -> Array:
    """A tensor as [m, n] with n <= m, in at least float32."""
    rows, columns = sides(x.shape)
    flat = x.reshape(-1).astype(wide_spec(spec_of(x)).dtype)
    matrix = jnp.pad(flat, (0, rows * columns - x.size)).reshape(rows, columns)
    return matrix if rows >= columns else matrix.T


def in_range(matrix: Array) -> tuple[Array, Array]:
    """The matrix scaled by a power of two so that max |A| is about 1, and the factor.

    The methods need fourth powers of the elements, which so stay in range. If any
    element is NaN or infinite, the matrix becomes zero, because solvers need finite
    input, and the factor NaN, so that results that are divided by it become NaN.
    """
    peak = jnp.max(jnp.abs(matrix))
    finite = jnp.isfinite(peak)
    _, exponent = jnp.frexp(jnp.where(finite, peak, 1))
    # Both the power of two and its inverse have to be normal numbers.
    factor = jnp.ldexp(jnp.ones_like(peak), -jnp.clip(exponent, -120, 120))
    return jnp.where(finite, matrix * factor, 0), jnp.where(finite, factor, jnp.nan)


def send(left: Array, right: Array, factor: Array, spec: Spec) -> Factors:
    """The payload of rows v_i, and of rows A v_i of the matrix times `factor`."""
    values = left * (1 / _balance(spec.shape)) / factor
    return Factors(values.astype(spec.dtype), right.astype(spec.dtype))


def decompress(payload: Payload, spec: Spec, bounded: bool = False) -> Array:
    """The tensor that a payload of `Factors` or `Dense` stands for.

    Args:
      payload: the tensor is linear in its `values`.
      spec: of the tensor.
      bounded: clip elements at the largest number of the dtype. A projection of x may
        exceed it although x does not, and clipping then makes the error smaller.
    """
    if isinstance(payload, Dense):
        return payload.values.astype(spec.dtype)
    wide = wide_spec(spec).dtype
    values, basis = payload.values.astype(wide), payload.basis.astype(wide)
    rows, columns = sides(spec.shape)
    matrix = _outer(values, basis) if rows >= columns else _outer(basis, values)
    balance = _balance(spec.shape)
    if bounded:
        largest = min(float(jnp.finfo(dtype).max) for dtype in (wide, spec.dtype))
        matrix = jnp.clip(matrix, -largest / balance, largest / balance)
    flat = (matrix * balance).reshape(-1)[: math.prod(spec.shape)]
    return flat.reshape(spec.shape).astype(spec.dtype)


def _balance(shape: tuple[int, ...]) -> float:
    """c, a power of two between sqrt(n) and 2 sqrt(n).

    |A v| may exceed the largest number of the dtype although no element of A does. The
    length |A v| / c does not, nor does any partial sum of sum_i (A v_i / c) v_i^T.
    """
    return 2.0 ** ((short_side(shape).bit_length() + 1) // 2)


def ideal_bits(spec: Spec, rank: int) -> float:
    """Bits of the r (m + n - r) numbers that determine a matrix of rank r."""
    numbers = math.prod(spec.shape)
    if pays(spec.shape, rank):
        numbers = min(numbers, rank * (sum(sides(spec.shape)) - rank))
    return float(numbers * jnp.dtype(spec.dtype).itemsize * 8)


# Under vmap the workers run one after the other. A batched product would sum in another
# order, and a worker would send other bits than under pmap or shard_map.
@jax.custom_batching.sequential_vmap
def spectrum(matrix: Array) -> SingularValues:
    """All singular triples, from the eigenvectors v_i of the Gram matrix A^T A.

    Squaring loses the accuracy of small singular values, so these are computed as the
    lengths |A v_i|. The equation A = sum_i (A v_i) v_i^T holds for all orthonormal v_i,
    however accurate the eigenvectors are.
    """
    _, vectors = jnp.linalg.eigh(multiply(matrix.T, matrix))
    right = vectors.T
    left = multiply(right, matrix.T)
    return SingularValues(jnp.sqrt(jnp.sum(jnp.square(left), axis=1)), left, right)


def leading(matrix: Array, rank: int, key: Array) -> tuple[Array, Array]:
    """The pairs (A v_i, v_i) of the `rank` largest singular values.

    Args:
      matrix: [m, n], n <= m.
      rank: at most n.
      key: draws the start of the search, which large matrices need.

    Returns:
      [rank, m] and [rank, n].
    """
    block = rank + _MORE
    if 4 * _STEPS * block <= matrix.shape[1]:
        start = jax.random.normal(key, (block, matrix.shape[1]), matrix.dtype)
        return _leading_by_krylov(matrix, _evened(start))
    return _leading_by_eigh(matrix, rank)


def _leading_by_eigh(matrix: Array, rank: int) -> tuple[Array, Array]:
    @jax.custom_batching.sequential_vmap
    def solve(matrix: Array) -> tuple[Array, Array]:
        _, vectors = jnp.linalg.eigh(multiply(matrix.T, matrix))
        right = vectors[:, -rank:].T
        return multiply(right, matrix.T), right

    return solve(matrix)


# The search takes this many more vectors than wanted, and this many steps. On Gaussian
# matrices, whose singular values lie close together, the vectors that are found then
# have at least 0.998 of the energy of the best ones.
_MORE = 4
_STEPS = 24


@jax.custom_batching.sequential_vmap
def _leading_by_krylov(matrix: Array, start: Array) -> tuple[Array, Array]:
    """The best vectors in the span of start, G start, G^2 start, ... with G = A^T A.

    This takes a few products of A with thin matrices instead of all eigenvectors of G.
    The span contains the start, which has a uniformly distributed direction. Therefore
    the best `rank` vectors have on average at least rank/n of the energy of any A.
    """
    block, n = start.shape
    rank = block - _MORE
    span = jnp.zeros((_STEPS * block, n), matrix.dtype).at[:block].set(start)

    def step(i: Array, span: Array) -> Array:
        last = jax.lax.dynamic_slice(span, ((i - 1) * block, 0), (block, n))
        more = multiply(multiply(last, matrix.T), matrix)
        for _ in range(2):  # the second time removes the rounding errors of the first
            more = _evened(more - multiply(multiply(more, span.T), span))
        return jax.lax.dynamic_update_slice(span, more, (i * block, 0))

    span = jax.lax.fori_loop(1, _STEPS, step, vary_like(span, matrix))
    # If A has few nonzero singular values, later vectors consist of rounding errors and
    # are not orthogonal to the others before this decomposition.
    span = jnp.linalg.qr(span.T)[0].T
    image = multiply(span, matrix.T)
    _, vectors = jnp.linalg.eigh(multiply(image, image.T))
    best = vectors[:, -rank:].T
    return multiply(best, image), multiply(best, span)


def _evened(rows: Array) -> Array:
    """Orthonormal rows with the same span, up to rounding errors.

    They follow from the eigenvectors of a small Gram matrix. LAPACK's QR decomposition
    would be called in a loop; if all cores are busy, each call waits for its threads
    and takes a hundred times as long.
    """
    lengths, vectors = jnp.linalg.eigh(multiply(rows, rows.T))
    floor = jnp.finfo(rows.dtype).eps * lengths[-1] + jnp.finfo(rows.dtype).tiny
    scales = jax.lax.rsqrt(jnp.maximum(lengths, floor))
    return multiply(vectors.T, rows) * scales[:, None]


@jax.custom_batching.sequential_vmap
def _outer(a: Array, b: Array) -> Array:
    return multiply(a.T, b)

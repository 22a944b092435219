"""What the low-rank methods share: tensors as matrices, and their singular vectors.

Not a method. A tensor becomes a matrix A of m rows and n <= m columns; a method picks
orthonormal directions v_i of the short side and sends the pairs (A v_i, v_i).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Payload, Spec
from jaxcomp.coding.payloads import Dense
from jaxcomp.trees import spec_of, vary_like, wide_spec

__all__ = [
    "Factors",
    "Spectrum",
    "decompress",
    "fold",
    "ideal_bits",
    "in_range",
    "leading",
    "pays",
    "send",
    "short_side",
    "sides",
    "spectrum",
]


class Factors(NamedTuple):
    """A sum of r outer products."""

    values: Array  # [r, m] A v_i / c; see `_balance`
    basis: Array  # [r, n] v_i


class Spectrum(NamedTuple):
    """All n singular triples of a matrix, as rows in no certain order."""

    lengths: Array  # [n] singular values s_i = |A v_i|
    left: Array  # [n, m] A v_i
    right: Array  # [n, n] v_i


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: the last axis beside all others.

    Convolutions of Flax are (height, width, in, out). Axes of one element do not count,
    and a vector becomes a matrix that is nearly square, with zeros at the end.

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
    """The largest rank that a tensor's matrix can have."""
    return min(sides(shape))


def pays(shape: tuple[int, ...], rank: int) -> bool:
    """Whether `rank` pairs are fewer numbers than the tensor itself.

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
    """The matrix times a power of two, its largest element about 1, and this factor.

    Fourth powers of elements must be in range. A NaN or an infinity anywhere makes the
    factor NaN and the matrix zero: solvers need finite input, and what is divided by
    the factor shows what happened.
    """
    peak = jnp.max(jnp.abs(matrix))
    finite = jnp.isfinite(peak)
    _, exponent = jnp.frexp(jnp.where(finite, peak, 1))
    # A power of two and its inverse both have to be normal numbers.
    factor = jnp.ldexp(jnp.ones_like(peak), -jnp.clip(exponent, -120, 120))
    return jnp.where(finite, matrix * factor, 0), jnp.where(finite, factor, jnp.nan)


def send(left: Array, right: Array, factor: Array, spec: Spec) -> Factors:
    """The payload of rows A v_i, of the matrix times `factor`, and v_i."""
    values = left * (1 / _balance(spec.shape)) / factor
    return Factors(values.astype(spec.dtype), right.astype(spec.dtype))


def decompress(payload: Payload, spec: Spec, bounded: bool = False) -> Array:
    """The tensor of a payload of `Factors`, or of `Dense` where factors do not pay.

    Args:
      payload: decoding is linear in its `values`.
      spec: the tensor's.
      bounded: cut what exceeds the dtype's largest number, as a projection may where x,
        which does not, is near it. That brings it but nearer to x.
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
    """c, a power of two above sqrt(n) and at most twice it.

    |A v| may exceed the largest number where no element of A does. |A v| / c does not,
    nor does any partial sum of a row of sum_i (A v_i / c) v_i^T.
    """
    return 2.0 ** ((short_side(shape).bit_length() + 1) // 2)


def ideal_bits(spec: Spec, rank: int) -> float:
    """Bits of the free numbers: a matrix of rank r has r (m + n - r) of them."""
    numbers = math.prod(spec.shape)
    if pays(spec.shape, rank):
        numbers = min(numbers, rank * (sum(sides(spec.shape)) - rank))
    return float(numbers * jnp.dtype(spec.dtype).itemsize * 8)


# Mapped over workers these run one after the other. A batched product would sum in
# another order, and the same worker would send other bits under another mapper.
@jax.custom_batching.sequential_vmap
def spectrum(matrix: Array) -> Spectrum:
    """All singular triples, from the eigenvectors of the short side's Gram matrix.

    The squares in it blur small singular values, so these are measured again as the
    lengths |A v_i|. A = sum_i (A v_i) v_i^T holds whatever the eigenvectors' accuracy.
    """
    _, vectors = jnp.linalg.eigh(_matmul(matrix.T, matrix))
    right = vectors.T
    left = _matmul(right, matrix.T)
    return Spectrum(jnp.sqrt(jnp.sum(jnp.square(left), axis=1)), left, right)


def leading(matrix: Array, rank: int, key: Array) -> tuple[Array, Array]:
    """The pairs (A v_i, v_i) of the `rank` largest singular values.

    Args:
      matrix: [m, n], n <= m.
      rank: at most n.
      key: for large matrices, where the search starts.

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
        _, vectors = jnp.linalg.eigh(_matmul(matrix.T, matrix))
        right = vectors[:, -rank:].T
        return _matmul(right, matrix.T), right

    return solve(matrix)


# More directions than wanted, and steps taken. On Gaussian matrices, whose singular
# values lie close together, what is found then has 0.998 of the best energy or more.
_MORE = 4
_STEPS = 24


@jax.custom_batching.sequential_vmap
def _leading_by_krylov(matrix: Array, start: Array) -> tuple[Array, Array]:
    """The best directions within the span of start, G start, G^2 start, ...; G = A^T A.

    A few thin products with A instead of all eigenvectors of G. The span contains the
    start, uniformly distributed directions, so the energy of the best `rank` in it is
    at least rank/n of all in the mean, for every matrix.
    """
    block, n = start.shape
    rank = block - _MORE
    span = jnp.zeros((_STEPS * block, n), matrix.dtype).at[:block].set(start)

    def step(i: Array, span: Array) -> Array:
        last = jax.lax.dynamic_slice(span, ((i - 1) * block, 0), (block, n))
        more = _matmul(_matmul(last, matrix.T), matrix)
        for _ in range(2):  # once leaves what rounding leaves
            more = _evened(more - _matmul(_matmul(more, span.T), span))
        return jax.lax.dynamic_update_slice(span, more, (i * block, 0))

    span = jax.lax.fori_loop(1, _STEPS, step, vary_like(span, matrix))
    # Where A has few singular values the later directions are rounding alone, and
    # orthogonal only from here on.
    span = jnp.linalg.qr(span.T)[0].T
    image = _matmul(span, matrix.T)
    _, vectors = jnp.linalg.eigh(_matmul(image, image.T))
    best = vectors[:, -rank:].T
    return _matmul(best, image), _matmul(best, span)


def _evened(rows: Array) -> Array:
    """Orthonormal rows of the same span, as far as rounding allows.

    By the eigenvectors of a small Gram matrix. LAPACK's QR would be called in a loop,
    and where cores are busy each call waits for its threads, a hundred times as long.
    """
    lengths, vectors = jnp.linalg.eigh(_matmul(rows, rows.T))
    floor = jnp.finfo(rows.dtype).eps * lengths[-1] + jnp.finfo(rows.dtype).tiny
    scales = jax.lax.rsqrt(jnp.maximum(lengths, floor))
    return _matmul(vectors.T, rows) * scales[:, None]


@jax.custom_batching.sequential_vmap
def _outer(a: Array, b: Array) -> Array:
    return _matmul(a.T, b)


def _matmul(a: Array, b: Array) -> Array:
    """A product in full float32, on accelerators too."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

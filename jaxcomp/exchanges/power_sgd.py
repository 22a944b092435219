"""PowerSGD: a low-rank approximation of the mean, by one power iteration a step."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.compressors._kit import matrices as shapes
from jaxcomp.core import trees
from jaxcomp.core.specs import Count, Range, method
from jaxcomp.core.trees import cast_like, leaf_numbers, norm, quick_norm, spec_of, widen
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, Spec, State, Tree
from jaxcomp.exchanges._common import report
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan


class PowerState(NamedTuple):
    """State of `power_sgd`, the same on all workers."""

    right: tuple[Array, ...]  # [columns, rank] of each large tensor: Q of the last step


@method("rank", given=2)
def power_sgd(
    name: str,
    plan: Plan,
    axis: Axis,
    rank: Count = 2,
    min_rate: Annotated[float, Range(least=1)] = 2.0,
    seed: int = 0,
) -> Exchange:
    """Approximate every matrix M by P Q^T of low rank, and average P and Q.

    P = orthonormal(mean_i M_i Q), Q = mean_i M_i^T P, mean = P Q^T, sent_i = P P^T M_i.
    A step takes two all-reduces, whatever the number of tensors and workers; small
    tensors are sent dense with the first. Q is kept, so that the power iteration of the
    next step starts from it; a column of zeros, as after a gradient of zeros, is drawn
    anew. The approximation is biased: use a memory.

    Args:
      plan: not used; a tensor is the matrix (all other axes, last axis).
      axis: the mapped axis.
      rank: columns of P and Q.
      min_rate: a tensor is sent dense unless it has more elements than its factors,
        by more than this factor.
      seed: of the first Q.

    References:
      Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed
      Optimization, arXiv:1905.13727, 2019.
    """
    is_large = functools.partial(_is_large, rank=rank, min_rate=min_rate)

    def init(tree: Tree) -> State:
        leaves = jax.tree.leaves(trees.wide_spec(spec_of(tree)))
        base = jax.random.key(seed)

        def first(number: int, leaf: jax.ShapeDtypeStruct) -> Array:
            shape = (shapes.sides(leaf.shape)[1], rank)
            own_key = jax.random.fold_in(base, number)
            return jax.random.normal(own_key, shape, leaf.dtype)

        pairs = zip(leaf_numbers(tree), leaves, strict=True)
        return PowerState(tuple(first(i, leaf) for i, leaf in pairs if is_large(leaf)))

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec = spec_of(tree)
        leaves, structure = jax.tree.flatten(widen(tree))
        large = [i for i, leaf in enumerate(leaves) if is_large(leaf)]
        small = [i for i in range(len(leaves)) if i not in large]
        dense = [leaves[i] for i in small]
        matrices = [leaves[i].reshape(shapes.sides(leaves[i].shape)) for i in large]
        starts = _starts(state.right, key)

        left = [_product(m, q) for m, q in zip(matrices, starts, strict=True)]
        arrived = collectives.mean_of_all(left + dense, axis)
        left = [orthonormal(p) for p in arrived[: len(large)]]
        right = [_turned_product(m, p) for m, p in zip(matrices, left, strict=True)]
        averaged = collectives.mean_of_all(right, axis)

        def restored(factors: Sequence[Array], rest: Sequence[Array]) -> Tree:
            parts = [*map(_outer, left, factors), *rest]
            found = dict(zip([*large, *small], parts, strict=True))
            result = [found[i].reshape(x.shape) for i, x in enumerate(leaves)]
            return jax.tree.unflatten(structure, result)

        mean = cast_like(restored(averaged, arrived[len(large) :]), spec)
        sent = restored(right, dense)
        wide_tree = jax.tree.unflatten(structure, leaves)
        missing = jax.tree.map(jnp.subtract, wide_tree, sent)
        # P P^T M is orthogonal to what is missing, so nobody has to read M again.
        lost = quick_norm(missing)
        info = report(lost, norm([lost, quick_norm(right), quick_norm(dense)]))
        sent, new = cast_like(sent, spec), PowerState(tuple(averaged))
        return Averaged(mean, sent, new, info, missing=missing)

    def contraction(spec: Spec) -> list[float | None]:
        # P P^T is a projection: its error is no larger than its input.
        return [0.0 if is_large(leaf) else 1.0 for leaf in jax.tree.leaves(spec)]

    return Exchange(
        name, init, average, axis, contraction=contraction, ignores_compressor=True
    )


def _is_large(leaf: Any, rank: int, min_rate: float) -> bool:
    """Whether a tensor is a matrix that has more elements than its factors."""
    axes = [length for length in leaf.shape if length > 1]
    numbers = rank * sum(shapes.sides(leaf.shape))
    return len(axes) > 1 and numbers * min_rate < leaf.size


def orthonormal(columns: Array) -> Array:
    """Orthonormal columns whose span contains that of the given ones.

    Computed by Householder reflections. If the columns are linearly dependent, the
    result is orthonormal all the same. So the power iteration can go on even after a
    matrix of zeros.

    Args:
      columns: [m, r].
    """
    rows, rank = columns.shape
    if rows < rank:
        columns = jnp.pad(columns, ((0, rank - rows), (0, 0)))
    return jnp.linalg.qr(columns)[0][:rows]


def _starts(right: Sequence[Array], key: Array) -> list[Array]:
    """Where the power iterations start: Q with random columns in place of zeros.

    A column of zeros makes one of P that depends on nothing, and may stand for rows
    that are always zero: then all columns to come would be zero too.

    Args:
      right: Q of each large tensor.
      key: the same on every worker.
    """
    if not right:
        return []
    longest = max(len(q) for q in right)
    fresh = jax.random.normal(key, (longest, right[0].shape[1]))
    is_zero = [jnp.all(q == 0, axis=0, keepdims=True) for q in right]
    pairs = zip(is_zero, right, strict=True)
    drawn = [jnp.where(zero, fresh[: len(q)].astype(q.dtype), q) for zero, q in pairs]
    return [_unit_columns(q) for q in drawn]


def _unit_columns(columns: Array) -> Array:
    """The columns, scaled to length 1; columns of zeros stay zero.

    The lengths are computed from scaled elements, as squares may overflow.
    """
    peaks = jnp.max(jnp.abs(columns), axis=0, keepdims=True)
    scaled = columns / jnp.where(peaks > 0, peaks, 1)
    lengths = jnp.sqrt(jnp.sum(jnp.square(scaled), axis=0, keepdims=True))
    return scaled / jnp.where(lengths > 0, lengths, 1)


def _product(a: Array, b: Array) -> Array:
    """A matrix product in the precision of its factors, on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _turned_product(matrix: Array, columns: Array) -> Array:
    """M^T P, one column after the other.

    XLA's product with a transposed matrix takes six times as long on a CPU.
    """
    # The barrier keeps XLA from joining the products into one.
    rows = [
        _product(jax.lax.optimization_barrier(columns[:, i]), matrix)
        for i in range(columns.shape[1])
    ]
    return jnp.stack(rows, axis=1)


def _outer(left: Array, right: Array) -> Array:
    """P Q^T as a sum of outer products.

    XLA fuses these into the operations that read the result, which is never stored.
    """
    columns = zip(left.T, right.T, strict=True)
    terms = [p[:, None] * q[None, :] for p, q in columns]
    return functools.reduce(jnp.add, terms)

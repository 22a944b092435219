"""Clipping before the exchange, as links of an optax chain.

`optax.clip_by_global_norm` clips by the norm of this worker's gradient. The links here
clip each tensor, or by norms of all workers; `memory="dgc(clip=...)"` clips to
c / sqrt(N).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.trees import clipped, norm, norms, scale_to
from jaxcomp.core.types import Array, Axis, Tree
from jaxcomp.parallel import collectives


def clip_by_norm(limit: float) -> optax.GradientTransformation:
    """Scale each tensor down to a norm of at most `limit`.

    Example:
      >>> tx = clip_by_norm(1.0)
      >>> tree = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([0.5])}
      >>> tx.update(tree, tx.init(tree))[0]
      {'a': Array([0.6, 0.8], dtype=float32), 'b': Array([0.5], dtype=float32)}
    """
    _check(limit)
    return _stateless(lambda tree: clipped(tree, limit, each=True))


def clip_by_worker_norm(
    limit: float, axis: Axis = "workers", each: bool = False
) -> optax.GradientTransformation:
    """Scale all workers' gradients by one factor, from the root mean square of norms.

    So the proportions between the workers' gradients stay, as they would not if each
    worker clipped by its own norm. A worker sends one number, or one for each tensor.

    Args:
      limit: of the root mean square of the workers' norms.
      axis: the mapped axis.
      each: a factor for every tensor instead of one for the tree.
    """
    _check(limit)

    def clip(tree: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(tree)
        lengths = norms(tree) if each else [norm(tree)] * len(leaves)
        factors = scale_to(_over_workers(jnp.stack(lengths), axis), limit)
        scaled = [x * f.astype(x.dtype) for x, f in zip(leaves, factors, strict=True)]
        return jax.tree.unflatten(structure, scaled)

    return _stateless(clip)


def clip_values_by_worker_norm(axis: Axis = "workers") -> optax.GradientTransformation:
    """Clip each element to the root mean square, over workers, of its tensor's norm.

    It changes only elements that are larger than the norm of a usual tensor.

    Args:
      axis: the mapped axis.
    """

    def clip(tree: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(tree)
        limits = _over_workers(jnp.stack(norms(tree)), axis)
        limits = [t.astype(x.dtype) for x, t in zip(leaves, limits, strict=True)]
        pairs = zip(leaves, limits, strict=True)
        return jax.tree.unflatten(structure, [jnp.clip(x, -t, t) for x, t in pairs])

    return _stateless(clip)


def _over_workers(lengths: Array, axis: Axis) -> Array:
    """Root mean square over the workers; squares neither overflow nor underflow."""
    return jax.vmap(lambda column: norm(column))(
        collectives.gather(lengths, axis).T
    ) / jnp.sqrt(jnp.float32(collectives.size(axis)))


def _check(limit: float) -> None:
    if not isinstance(limit, int | float) or not limit > 0:
        raise ValueError(f"limit is a positive number, not {limit!r}")


def _stateless(clip: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: clip(updates))

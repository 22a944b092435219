"""Norms of trees that neither overflow nor hide a NaN, and clipping to them."""

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Tree

__all__ = ["clipped", "norm", "norms", "scale_to"]


def norms(tree: Tree) -> list[Array]:
    """Euclidean norm of each leaf in float32, at any scale.

    Example:
        >>> norms({"a": jnp.array([3e30, -4e30]), "b": jnp.zeros(2)})
        [Array(5.e+30, dtype=float32), Array(0., dtype=float32)]
    """
    return [_norm(leaf) for leaf in jax.tree.leaves(tree)]


def norm(tree: Tree) -> Array:
    """Euclidean norm of all leaves together."""
    parts = norms(tree)
    return _norm(jnp.stack(parts)) if parts else jnp.float32(0)


def scale_to(length: Array, limit: Array | float) -> Array:
    """The factor, at most 1, that makes a length at most the limit; NaN for NaN."""
    return jnp.where(length <= limit, 1.0, limit / length)


def clipped(tree: Tree, limit: Array | float, each: bool = False) -> Tree:
    """The tree, or each of its leaves, scaled down to a norm of at most `limit`.

    Example:
        >>> clipped(jnp.array([3.0, 4.0]), limit=1.0)
        Array([0.6, 0.8], dtype=float32)
    """
    leaves, structure = jax.tree.flatten(tree)
    lengths = norms(tree) if each else [norm(tree)] * len(leaves)
    pairs = zip(leaves, lengths, strict=True)
    scaled = [x * scale_to(n, limit).astype(x.dtype) for x, n in pairs]
    return jax.tree.unflatten(structure, scaled)


def _norm(x: Array) -> Array:
    x = jnp.abs(x.astype(jnp.float32))
    _, exponent = jnp.frexp(jnp.max(x, initial=0))
    # A power of two and its inverse, both normal numbers: squares stay in range. The
    # sum shows a NaN that a maximum may forget.
    exponent = jnp.clip(exponent, -120, 120)
    scaled = x * jnp.ldexp(jnp.float32(1), -exponent)
    return jnp.sqrt(jnp.sum(jnp.square(scaled))) * jnp.ldexp(jnp.float32(1), exponent)

"""A tree as the vectors that a plan compresses, and back."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Spec, Tree, spec_of
from jaxcomp.scope.plans import Group, Leaf, Plan, joined_spec

__all__ = ["cut", "groups_of", "join", "to_tree", "to_vectors", "vectors_plan"]


def groups_of(plan: Plan, tree: Tree) -> list[Group]:
    """The plan's groups for a tree; tensors without elements are in none."""
    paths, _ = jax.tree_util.tree_flatten_with_path(spec_of(tree))
    leaves = [
        Leaf(jax.tree_util.keystr(path, simple=True, separator="/"), spec, i)
        for i, (path, spec) in enumerate(paths)
    ]
    return plan.groups([leaf for leaf in leaves if leaf.spec.size])


def to_vectors(tree: Tree, groups: list[Group]) -> tuple[Array, ...]:
    """One flat vector for each group.

    Example:
        >>> from jaxcomp.compressors import make
        >>> from jaxcomp.scope import whole_tree
        >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
        >>> groups = groups_of(whole_tree(make("sign")), tree)
        >>> [v.shape for v in to_vectors(tree, groups)]
        [(8,)]
    """
    leaves = jax.tree.leaves(tree)
    own = [[leaves[leaf.place] for leaf in group.leaves] for group in groups]
    pairs = zip(own, groups, strict=True)
    return tuple(join(parts, group).reshape(-1) for parts, group in pairs)


def to_tree(vectors: tuple[Array, ...], groups: list[Group], spec: Spec) -> Tree:
    """The inverse of `to_vectors`, in the dtypes of `spec`.

    Args:
      vectors: for each group one, perhaps longer than the group.
      groups: of the tree.
      spec: of the tree.
    """
    specs, structure = jax.tree.flatten(spec)
    leaves: list[Any] = [jnp.zeros(s.shape, s.dtype) for s in specs]
    for vector, group in zip(vectors, groups, strict=True):
        start = 0
        for leaf in group.leaves:
            part = vector[start : start + leaf.spec.size]
            shaped = part.reshape(leaf.spec.shape)
            leaves[leaf.place] = shaped.astype(specs[leaf.place].dtype)
            start += leaf.spec.size
    return jax.tree.unflatten(structure, leaves)


def vectors_plan(groups: list[Group], title: str) -> Plan:
    """The plan for a tuple with something for each group: its group's compressor."""

    def each(leaves: Any) -> list[Group]:
        return [Group((leaf,), groups[leaf.place].compressor) for leaf in leaves]

    return Plan(title, each, tuple(group.compressor for group in groups))


def join(arrays: list[Array], group: Group) -> Array:
    """The array that a group is compressed as; a single tensor keeps its shape."""
    if len(arrays) == 1:
        return arrays[0]
    dtype = joined_spec(group).dtype
    return jnp.concatenate([array.reshape(-1).astype(dtype) for array in arrays])


def cut(x: Array, group: Group) -> list[Array]:
    """The inverse of `join`."""
    if len(group.leaves) == 1:
        return [x]
    parts, start = [], 0
    for leaf in group.leaves:
        part = x[start : start + leaf.spec.size]
        parts.append(part.reshape(leaf.spec.shape))
        start += leaf.spec.size
    return parts

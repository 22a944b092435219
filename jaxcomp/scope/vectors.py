"""Conversion of a tree to the vectors that a plan compresses, and back."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Spec, Tree
from jaxcomp.scope.patterns import leaves_of
from jaxcomp.scope.plans import Group, Plan, joined_spec
from jaxcomp.trees import cast

__all__ = ["groups_of", "to_arrays", "to_tree", "to_vectors", "vectors_plan"]


def groups_of(plan: Plan, tree: Tree) -> list[Group]:
    """The groups of a tree by a plan; tensors without elements are in no group."""
    return plan.groups([leaf for leaf in leaves_of(tree) if leaf.spec.size])


def to_arrays(tree: Tree, groups: list[Group]) -> tuple[Array, ...]:
    """The array of each group: a single tensor in its shape, or several as one vector.

    Example:
      >>> from jaxcomp.compressors import make
      >>> from jaxcomp.scope import only_large
      >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
      >>> groups = groups_of(only_large(make("sign"), min_size=3), tree)
      >>> [x.shape for x in to_arrays(tree, groups)]
      [(2, 3), (2,)]
    """
    leaves = jax.tree.leaves(tree)

    def joined(group: Group) -> Array:
        tensors = [leaves[leaf.place] for leaf in group.leaves]
        if len(tensors) == 1:
            return tensors[0]
        dtype = joined_spec(group).dtype
        return jnp.concatenate([x.reshape(-1).astype(dtype) for x in tensors])

    return tuple(joined(group) for group in groups)


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
    return tuple(x.reshape(-1) for x in to_arrays(tree, groups))


def to_tree(arrays: Sequence[Array], groups: list[Group], spec: Spec) -> Tree:
    """The inverse of `to_arrays` and of `to_vectors`, in the dtypes of `spec`.

    Args:
      arrays: one for each group, in any shape. Elements at its end that the group does
        not have are ignored.
      groups: from `groups_of`.
      spec: shapes and dtypes of the tree.
    """
    specs, structure = jax.tree.flatten(spec)
    leaves: list[Any] = [jnp.zeros(s.shape, s.dtype) for s in specs]
    for array, group in zip(arrays, groups, strict=True):
        vector, start = array.reshape(-1), 0
        for leaf in group.leaves:
            part = vector[start : start + leaf.spec.size]
            shaped = part.reshape(leaf.spec.shape)
            leaves[leaf.place] = cast(shaped, specs[leaf.place].dtype)
            start += leaf.spec.size
    return jax.tree.unflatten(structure, leaves)


def vectors_plan(groups: list[Group], title: str) -> Plan:
    """A plan for a tuple with one array for each group.

    Each array is compressed by itself, by the compressor of its group and with keys of
    the group's number.

    Args:
      groups: from `groups_of`.
      title: title of the plan.
    """

    def each(leaves: Any) -> list[Group]:
        own = [(leaf, groups[leaf.place]) for leaf in leaves]
        return [Group((x._replace(number=g.number),), g.compressor) for x, g in own]

    return Plan(title, each, tuple(group.compressor for group in groups))

"""Plans: which tensors of a tree are compressed as one vector, and how.

No plan names a method, except that small tensors may go dense.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxcomp.base import Compressor
from jaxcomp.compressors import make
from jaxcomp.specs import Call, build

__all__ = [
    "REGISTRY",
    "Group",
    "Leaf",
    "Plan",
    "bucketed",
    "joined_spec",
    "only_large",
    "per_leaf",
    "whole_tree",
]


class Leaf(NamedTuple):
    """One tensor of the tree, as a plan sees it."""

    path: str  # such as "Conv_0/kernel"
    spec: jax.ShapeDtypeStruct
    place: int  # position among all leaves of the tree


class Group(NamedTuple):
    """Tensors that are compressed as one vector, and how."""

    leaves: tuple[Leaf, ...]
    compressor: Compressor


class Plan(NamedTuple):
    """How a tree is cut into groups."""

    name: str
    groups: Callable[[Sequence[Leaf]], list[Group]]
    compressors: tuple[Compressor, ...]  # all that may occur, for the facts


def per_leaf(compressor: Compressor) -> Plan:
    """Compress every tensor by itself, in its own shape."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group((leaf,), compressor) for leaf in leaves]

    return Plan("per_leaf", groups, (compressor,))


def whole_tree(compressor: Compressor) -> Plan:
    """Join all tensors into one vector: one threshold, norm or scale for the model."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group(tuple(leaves), compressor)] if leaves else []

    return Plan("whole_tree", groups, (compressor,))


def bucketed(compressor: Compressor, bytes: int = 25_000_000) -> Plan:
    """Join neighbouring tensors into vectors of at most `bytes`; a tensor is not cut.

    Args:
      compressor: applied to every bucket.
      bytes: upper limit of a bucket; a larger tensor has a bucket of its own.
    """
    if not isinstance(bytes, int) or bytes < 1:
        raise ValueError(f"bytes is a whole number of at least 1, not {bytes}")

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        buckets: list[Group] = []
        for leaf in leaves:
            joined = Group((*buckets[-1].leaves, leaf), compressor) if buckets else None
            if joined is None or _nbytes(joined_spec(joined)) > bytes:
                buckets.append(Group((leaf,), compressor))
            else:
                buckets[-1] = joined
        return buckets

    return Plan(f"bucketed(bytes={bytes})", groups, (compressor,))


def only_large(
    compressor: Compressor, min_size: int = 1024, scope: str | Call = "per_leaf"
) -> Plan:
    """Send tensors of fewer than `min_size` elements dense, in the same message.

    Biases and norms are a thousandth of the bytes and the first to suffer.

    Args:
      compressor: applied to the large tensors.
      min_size: elements from which on a tensor is large.
      scope: the scope of the large tensors.
    """
    if not isinstance(min_size, int) or min_size < 0:
        raise ValueError(f"min_size is a whole number of at least 0, not {min_size}")
    inner = build(scope, REGISTRY, "scope", compressor)
    dense = make("none")

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        large = [leaf for leaf in leaves if leaf.spec.size >= min_size]
        small = [leaf for leaf in leaves if leaf.spec.size < min_size]
        return inner.groups(large) + [Group((leaf,), dense) for leaf in small]

    name = f"only_large(min_size={min_size}, scope={inner.name})"
    return Plan(name, groups, (*inner.compressors, dense))


REGISTRY: dict[str, Callable[..., Plan]] = {
    "bucketed": bucketed,
    "only_large": only_large,
    "per_leaf": per_leaf,
    "whole_tree": whole_tree,
}


def joined_spec(group: Group) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the vector that a group is compressed as."""
    if len(group.leaves) == 1:
        return group.leaves[0].spec
    dtype = functools.reduce(np.promote_types, [g.spec.dtype for g in group.leaves])
    return jax.ShapeDtypeStruct((sum(leaf.spec.size for leaf in group.leaves),), dtype)


def _nbytes(spec: jax.ShapeDtypeStruct) -> int:
    return spec.size * spec.dtype.itemsize

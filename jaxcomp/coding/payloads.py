"""What methods send: trees of arrays with static shapes.

So the size of a payload is read off shapes and dtypes rather than claimed. Whatever a
sparsifier or a factorisation sends as numbers is in a field called `values`:
composition and exchanges that sum values rely on that name.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Payload

__all__ = [
    "Dense",
    "Quantized",
    "Seeded",
    "Signs",
    "Sparse",
    "map_values",
    "nbits",
]


class Dense(NamedTuple):
    """Every element as it is."""

    values: Array  # the tensor's own shape and dtype


class Sparse(NamedTuple):
    """Chosen elements with their places in the flattened tensor."""

    values: Array  # [k]
    indices: Any  # ascending, as `jaxcomp.coding.indices` codes them


class Seeded(NamedTuple):
    """Chosen elements whose places follow from a seed."""

    values: Array  # [k]
    seed: Array  # [2] uint32


class Quantized(NamedTuple):
    """Integer levels, packed, with one step size for each bucket."""

    units: Array  # [buckets] float32: an element is units * level
    packed: Array  # uint8


class Signs(NamedTuple):
    """The sign of each element and one scale for all."""

    scale: Array  # [] float32
    packed: Array  # uint8: a bit each, set for negative ones, or as `pack_signs` does


def nbits(payload: Payload) -> int:
    """Bits of the arrays that are sent, from their shapes and dtypes.

    Args:
      payload: tree of arrays, tracers or `ShapeDtypeStruct`s.

    Example:
      >>> nbits(Sparse(jnp.zeros(10), jnp.zeros(10, jnp.uint16)))
      480
    """
    leaves = jax.tree.leaves(payload)
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize * 8 for x in leaves)


def map_values(function: Callable[[Any], Any], payload: Payload) -> Payload:
    """Apply `function` to the list of all `values` in a payload tree at once.

    Args:
      function: list of arrays -> list of as many arrays.
      payload: a payload or a tree of payloads, each with a `values` field. Where a
        composition has put a payload there, its own `values` are meant.
    """
    nodes, structure = jax.tree.flatten(payload, is_leaf=_has_values)
    values = function([_innermost(node) for node in nodes])
    nodes = [_with_innermost(n, v) for n, v in zip(nodes, values, strict=True)]
    return jax.tree.unflatten(structure, nodes)


def _has_values(node: Any) -> bool:
    return hasattr(node, "values") and hasattr(node, "_replace")


def _innermost(node: Any) -> Any:
    return _innermost(node.values) if _has_values(node) else node


def _with_innermost(node: Any, values: Any) -> Any:
    if not _has_values(node):
        return values
    return node._replace(values=_with_innermost(node.values, values))

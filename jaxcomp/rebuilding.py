"""Parts of a state that are built anew for another number of workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxcomp.base import Resize, Tree
from jaxcomp.keys import is_key

__all__ = ["built_anew", "by_shards", "has_rebuilt"]


def has_rebuilt(state: Tree, rules: Sequence[Resize]) -> list[str]:
    """The names of the types in a state that a rule builds anew.

    Example:
      >>> has_rebuilt({"step": 1}, [])
      []
    """
    found = jax.tree.leaves(state, is_leaf=_known(rules))
    return sorted({type(x).__name__ for x in found if _known(rules)(x)})


def built_anew(
    state: Tree, rules: Sequence[Resize], params: Tree, workers: int
) -> Tree:
    """The state, with what the rules build anew as NumPy arrays.

    Args:
      state: whose other parts are those of the new workers already.
      rules: those without `rebuild` do nothing here.
      params: of what the state is for.
      workers: their new number.
    """
    builds = {rule.of: rule.rebuild for rule in rules if rule.rebuild}

    def build(node: Any) -> Any:
        if not is_known(node):
            return node
        new = builds[type(node)](node, params, workers)
        return jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), new)

    is_known = _known(rules)
    return jax.tree.map(build, state, is_leaf=is_known)


def by_shards(
    build: Callable[[Tree], Tree], tree: Tree, params: Tree, workers: int
) -> Tree:
    """What is built of the shards that a device holds, as arrays of all shards.

    Args:
      build: from a tree of shards to one with an axis of the workers in front.
      tree: has the shapes of the params, or None in place of some of them.
      params: whose shardings say how a model is cut.
      workers: their number.

    Example:
      >>> by_shards(lambda x: x[None] + 1, np.arange(3), np.zeros(3), 1)
      array([[1, 2, 3]])
    """
    pairs = zip(_with_gaps(tree), _with_gaps(params), strict=True)
    cuts = [_shards(param) for own, param in pairs if own is not None]
    devices = next((list(cut) for cut in cuts if cut), [None])
    places = [[cut.get(device, (...,)) for cut in cuts] for device in devices]
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    result = [np.zeros((workers, *x.shape), x.dtype) for x in leaves]
    for place in {str(place): place for place in places}.values():
        part = [x[index] for x, index in zip(leaves, place, strict=True)]
        built = jax.tree.leaves(build(jax.tree.unflatten(structure, part)))
        for x, index, new in zip(result, place, built, strict=True):
            x[(slice(None), *index)] = new
    return jax.tree.unflatten(structure, result)


def _with_gaps(tree: Tree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: x is None)


def _shards(x: Any) -> Mapping[Any, Any]:
    """Which part of an array each device holds; empty if it is not on a mesh."""
    sharding = getattr(x, "sharding", None)
    is_cut = isinstance(sharding, NamedSharding)
    return sharding.devices_indices_map(x.shape) if is_cut else {}


def _known(rules: Sequence[Resize]) -> Any:
    types = {rule.of for rule in rules if rule.rebuild}
    return lambda node: type(node) in types and bool(jax.tree.leaves(node))

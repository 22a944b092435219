"""Parts of a state that are built anew for another number of workers."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxcomp.base import Resize, Tree
from jaxcomp.keys import is_key

__all__ = ["built_anew", "has_rebuilt"]


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


def _known(rules: Sequence[Resize]) -> Any:
    types = {rule.of for rule in rules if rule.rebuild}
    return lambda node: type(node) in types and bool(jax.tree.leaves(node))

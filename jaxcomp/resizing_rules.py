"""The rules for each part of a state when the number of workers changes.

`jaxcomp.resizing` says what they are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import regrouping
from jaxcomp.base import (
    Resize,
    is_averaged_on_resize,
    is_clock,
    is_per_worker,
    is_report,
)
from jaxcomp.errors import UserError
from jaxcomp.keys import is_key
from jaxcomp.link_state import DistributedState
from jaxcomp.trees import name_of

__all__ = ["Place", "Walk"]


class Place(NamedTuple):
    """Where in a state a node stands."""

    is_marked: bool = False
    in_method: bool = False  # in the state of an exchange or a mixer
    averages: bool = True  # whether marked floats are averaged here


class Walk(NamedTuple):
    """Goes through a state and applies the rules to each leaf."""

    old: int
    new: int
    rules: dict[type, Resize]

    def node(self, node: Any, path: tuple[Any, ...], place: Place) -> Any:
        """The node for the new workers.

        Args:
          node: any part of a state.
          path: of it.
          place: what the nodes around it say.
        """
        if is_report(node):
            return self._report(node) if place.is_marked else node
        if is_per_worker(node):
            place = place._replace(is_marked=True)
        elif is_clock(node):
            place = place._replace(averages=False)
        elif isinstance(node, DistributedState):
            self._check_mixer(node, path, place)
        elif place.in_method:
            place = self._in_method(node, place)
        children, structure = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda x: x is not node
        )
        if jax.tree_util.treedef_is_leaf(structure) and len(children) == 1:
            return self._leaf(node, path, place) if place.is_marked else node
        rule = self.rules.get(type(node)) or Resize(type(node))
        values = []
        for key, child in children:
            inner = (*path, *key)
            if key[0] in _fields(rule.handed_on):
                child = self._handed_on(child, inner)
            elif key[0] not in _fields(rule.rebuilt):  # that is done afterwards
                child = self.node(child, inner, _below(node, key[0], place))
            values.append(child)
        return jax.tree.unflatten(structure, values)

    def _handed_on(self, node: Any, path: tuple[Any, ...]) -> Any:
        """What new worker i takes from old worker i modulo their number."""

        def of(inner: Any, leaf: Any) -> Any:
            rows = leaf if is_key(leaf) else _on_host(leaf, (*path, *inner))
            return rows[np.arange(self.new) % self.old]

        return jax.tree_util.tree_map_with_path(of, node)

    def _in_method(self, node: Any, place: Place) -> Place:
        """The place below a node of a method's state."""
        kind = type(node)
        if kind in self.rules or is_averaged_on_resize(kind):
            return place._replace(averages=True)
        # A type that marks a field is a state of its own, and nobody declared it.
        has_marks = isinstance(node, tuple) and any(map(is_per_worker, node))
        return place._replace(averages=False) if has_marks else place

    def _check_mixer(self, node: DistributedState, path: Any, place: Place) -> None:
        """Refuse the state of a mixer without a rule for another number of workers."""
        is_known = type(node.exchange) in self.rules
        if place.is_marked and not is_known and jax.tree.leaves(node.exchange):
            raise UserError(
                f"{name_of(path)} holds the state of a mixer, a "
                f"{type(node.exchange).__name__}, which depends on the number of "
                "workers: give method=, the mixer for the new number, with an entry "
                "for this type in its `resize`"
            )

    def _report(self, node: Any) -> Any:
        """Nothing to report, as after a restore."""

        def zero(x: Any) -> np.ndarray:
            return np.zeros((self.new, *x.shape[1:]), x.dtype)

        return jax.tree.map(zero, node)

    def _leaf(self, leaf: Any, path: tuple[Any, ...], place: Place) -> Any:
        if is_key(leaf):
            return regrouping.succeeding_keys(leaf, self.new)
        rows = _on_host(leaf, path)
        if (alike := regrouping.same(rows, self.new)) is not None:
            return alike
        is_float = jnp.issubdtype(rows.dtype, jnp.inexact)
        if is_float and place.averages:
            return regrouping.averaged(rows, self.new)
        where = name_of(path)
        if is_float:
            raise UserError(
                f"{where} differs between workers, and no rule says what becomes of it "
                "with another number of them: give method=, the exchange or mixer for "
                "the new number. If the state is your own, jaxcomp.averaged_on_resize "
                "declares its type, or an entry in `resize` of the exchange"
            )
        raise UserError(
            f"{where} ({rows.dtype}) differs between workers, so it can be neither "
            "averaged nor copied for another number of them: take it out of the "
            "state, make it the same on all workers, or go on with "
            f"{self.old} workers"
        )


def _below(node: Any, key: Any, place: Place) -> Place:
    """The place of a child."""
    if isinstance(node, DistributedState) and key == jax.tree_util.GetAttrKey(
        "exchange"
    ):
        return place._replace(in_method=True, averages=False)
    return place


def _fields(names: tuple[str, ...]) -> set[Any]:
    """The keys of fields in a path."""
    return {jax.tree_util.GetAttrKey(name) for name in names}


def _on_host(leaf: Any, path: tuple[Any, ...]) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise UserError(
            f"{name_of(path)} lies in several processes: save the state, and restore "
            "it with the new number of workers"
        )
    return np.asarray(leaf)

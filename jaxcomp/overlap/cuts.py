"""How a tree is cut into parts, in the order in which its gradients become ready."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxcomp.base import Spec, Tree
from jaxcomp.errors import UserError
from jaxcomp.specs import Count, check
from jaxcomp.trees import label_of, name_of

__all__ = ["WHOLE", "Cut", "make_cut"]


class Cut(NamedTuple):
    """A rule by which trees are cut into parts of about equal bytes.

    Trees of the same shapes are always cut in the same way.
    """

    parts: int = 1
    # From `ready_order`. None: the leaves from the last name to the first one, because
    # frameworks number layers from the input on.
    order: Tree | None = None

    def places(self, tree: Spec) -> list[list[int]]:
        """For each part, the places of its leaves in the tree, in ascending order.

        A tree with few leaves, or with one very large one, has fewer parts.

        Example:
          >>> import jax.numpy as jnp
          >>> tree = {"layer_1": jnp.ones(5), "layer_10": jnp.ones(4)}
          >>> Cut(2).places({**tree, "layer_2": jnp.ones(2)})
          [[1, 2], [0]]
        """
        paths, _ = jax.tree_util.tree_flatten_with_path(tree)
        if self.parts == 1:
            return [list(range(len(paths)))]
        early = sorted(range(len(paths)), key=self._ranks([p for p, _ in paths]))
        sizes = [paths[i][1].size * paths[i][1].dtype.itemsize for i in early]
        whole, before = max(sum(sizes), 1), 0
        found: list[list[int]] = [[] for _ in range(self.parts)]
        for place, size in zip(early, sizes, strict=True):
            # The part in which the middle of the leaf lies.
            middle = min(
                (2 * before + size) * self.parts // (2 * whole), self.parts - 1
            )
            found[middle].append(place)
            before += size
        return [sorted(part) for part in found if part] or [[]]

    def trees(self, tree: Tree) -> list[Tree]:
        """The tree of each part: the same one, with None in place of other leaves.

        Example:
          >>> import jax.numpy as jnp
          >>> Cut(2).trees({"a": jnp.zeros(1), "b": jnp.ones(1)})
          [{'a': None, 'b': Array([1.], dtype=float32)}, \
{'a': Array([0.], dtype=float32), 'b': None}]
        """
        leaves, structure = jax.tree.flatten(tree)

        def only(part: list[int]) -> Tree:
            kept: list[Any] = [None] * len(leaves)
            for place in part:
                kept[place] = leaves[place]
            return jax.tree.unflatten(structure, kept)

        return [only(part) for part in self.places(tree)]

    def map(self, function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
        """A function of the leaves of each part, applied to all parts.

        Args:
          function: (leaves of a part, ...) -> what stands in place of each leaf.
          tree: tells how it is cut.
          *rest: further trees of its structure.
        """
        structure = jax.tree.structure(tree)
        columns = [jax.tree.leaves(tree), *map(structure.flatten_up_to, rest)]
        result: list[Any] = [None] * structure.num_leaves
        for part in self.places(tree):
            made = function(*([column[i] for i in part] for column in columns))
            for place, leaf in zip(part, made, strict=True):
                result[place] = leaf
        return jax.tree.unflatten(structure, result)

    def _ranks(self, paths: list[Any]) -> Callable[[int], Any]:
        """The key that sorts leaves by their turn."""
        if self.order is None:
            names = [_natural(name_of(path)) for path in paths]
            turns = sorted(range(len(names)), key=names.__getitem__, reverse=True)
            return turns.index
        numbers = dict(jax.tree_util.tree_flatten_with_path(self.order)[0])
        for path in paths:
            if path not in numbers:
                raise UserError(
                    f"the order of overlap has no number for {label_of(path)}: trace "
                    "the gradient of these params, ready_order(jax.grad(loss), params)"
                )
        return lambda place: (numbers[paths[place]], place)


WHOLE = Cut()


def make_cut(parts: int, order: Tree | None = None) -> Cut:
    """A cut into so many parts; refuses what is no number of parts."""
    check(Count, "overlap", parts)
    return Cut(parts, order)


def _natural(name: str) -> list[Any]:
    """What sorts "Conv_10" behind "Conv_2".

    Example:
      >>> _natural("Conv_10")
      ['Conv_', 10, '']
    """
    pieces = re.split(r"(\d+)", name)
    return [int(p) if i % 2 else p for i, p in enumerate(pieces)]

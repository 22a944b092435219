"""Patterns of tensors: by their paths, their sizes and their numbers of axes."""

import fnmatch
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

import jax

from jaxcomp.base import Tree
from jaxcomp.specs import SpecError, suggest
from jaxcomp.trees import name_of, numbers_of, spec_of

__all__ = ["Leaf", "leaf_test", "leaves_of", "which_fit"]


class Leaf(NamedTuple):
    """What a plan knows of a tensor of the tree."""

    path: str  # such as "Conv_0/kernel"
    spec: jax.ShapeDtypeStruct
    place: int  # its number among the leaves of the tree
    # The same, but places where a part of a tree has None are counted. So a leaf has
    # the same number in the tree and in its parts, and the same random choices.
    number: int


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def leaf_test(pattern: str) -> Callable[[Leaf], bool]:
    """The test whether a tensor fits a pattern.

    Args:
      pattern: a path with wildcards ("*/bias", "Dense*"), a comparison of `size` or
        `ndim` ("size<1000", "ndim>=2"), what does not fit one ("!*/bias"), or several
        of these joined by "&".

    Example:
      >>> leaf = Leaf("Dense_0/kernel", jax.ShapeDtypeStruct((3, 2), "float32"), 0, 0)
      >>> leaf_test("Dense*&ndim>=2")(leaf), leaf_test("!*/kernel")(leaf)
      (True, False)
    """
    tests = [_test(part.strip()) for part in pattern.split("&")]
    return lambda leaf: all(test(leaf) for test in tests)


def leaves_of(tree: Tree) -> list[Leaf]:
    """What patterns and plans know of each tensor of a tree, in its order."""
    paths, _ = jax.tree_util.tree_flatten_with_path(spec_of(tree))
    named = zip(paths, numbers_of(tree), strict=True)
    return [
        Leaf(name_of(path), spec, place, number)
        for place, ((path, spec), number) in enumerate(named)
    ]


def which_fit(pattern: str, tree: Tree) -> Tree:
    """For each tensor of a tree, whether it fits a pattern.

    Example:
      >>> import jax.numpy as jnp
      >>> which_fit("ndim>=2", {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})
      {'bias': False, 'kernel': True}
    """
    fits = leaf_test(pattern)
    found = [fits(leaf) for leaf in leaves_of(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), found)


def _test(part: str) -> Callable[[Leaf], bool]:
    """The test for one part of a pattern: a path, a comparison, or not one of them."""
    if part.startswith("!"):
        fits = _test(part[1:].strip())
        return lambda leaf: not fits(leaf)
    comparison = re.fullmatch(r"(\w+)\s*(<=|>=|==|<|>)\s*([\d_]+)", part)
    if comparison is None:
        if not part or re.search(r"[<>=]", part):
            hint = "Write '*/bias', 'size<1000' or 'ndim>=2'"
            raise SpecError(f"not a pattern: {part!r}. {hint}")
        return lambda leaf: fnmatch.fnmatchcase(leaf.path, part)
    name, sign, number = comparison.groups()
    properties = ("ndim", "size")  # of a spec
    if name not in properties:
        raise SpecError(
            f"unknown figure {name!r} in {part!r}. {suggest(name, properties)}"
        )
    compare, limit = _COMPARISONS[sign], int(number)
    return lambda leaf: compare(getattr(leaf.spec, name), limit)

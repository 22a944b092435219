"""Plans: which tensors of a tree are compressed as one vector, and by which method.

A plan works with every compressor. The only one that it names itself is `none`, with
which small tensors are sent as they are.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax

from jaxcomp.base import Compressor
from jaxcomp.compressors import make
from jaxcomp.scope.patterns import Leaf, leaf_test
from jaxcomp.specs import Call, Count, Range, Shown, SpecError, build, method
from jaxcomp.trees import joint_dtype, wide_spec

__all__ = [
    "REGISTRY",
    "Group",
    "Plan",
    "bucketed",
    "joined_spec",
    "make_plan",
    "only_large",
    "per_leaf",
    "policy",
    "whole_tree",
]


class Group(NamedTuple):
    """Tensors that are compressed as one vector, and their compressor."""

    leaves: tuple[Leaf, ...]
    compressor: Compressor

    @property
    def number(self) -> int:
        """Of its first leaf; no two groups have the same."""
        return self.leaves[0].number


class Plan(NamedTuple):
    """How the tensors of a tree are divided into groups."""

    title: str  # names the scope and the compressor
    groups: Callable[[Sequence[Leaf]], list[Group]]
    compressors: tuple[Compressor, ...]  # all that may occur; a plan has their facts
    patterns: tuple[str, ...] = ()  # of a policy


def per_leaf(compressor: Compressor) -> Plan:
    """Compress every tensor by itself, in its own shape."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group((leaf,), compressor) for leaf in leaves]

    return Plan(compressor.name, groups, (compressor,))


def whole_tree(compressor: Compressor) -> Plan:
    """Join all tensors into one vector, which then has one threshold, norm or scale."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group(tuple(leaves), compressor)] if leaves else []

    return Plan(f"whole_tree: {compressor.name}", groups, (compressor,))


@method("bytes", given=1)
def bucketed(name: str, compressor: Compressor, bytes: Count = 25_000_000) -> Plan:
    """Join neighbouring tensors into vectors, which are called buckets.

    Args:
      compressor: compresses every bucket.
      bytes: largest size of a bucket, in at least float32. A larger tensor is not
        divided; it has a bucket of its own.
    """

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        buckets: list[Group] = []
        for leaf in leaves:
            joined = Group((*buckets[-1].leaves, leaf), compressor) if buckets else None
            if joined is None or _nbytes(joined_spec(joined)) > bytes:
                buckets.append(Group((leaf,), compressor))
            else:
                buckets[-1] = joined
        return buckets

    return Plan(f"{name}: {compressor.name}", groups, (compressor,))


@method("min_size", "scope", given=1)
def only_large(
    name: str,
    compressor: Compressor,
    min_size: Annotated[int, Range(least=0)] = 1024,
    scope: Annotated[str | Call, Shown(lambda scope, _: str(scope))] = "per_leaf",
) -> Plan:
    """Send tensors of fewer than `min_size` elements as they are.

    Biases and the parameters of normalisation layers are a thousandth of the bytes, and
    training is sensitive to errors in them.

    Args:
      compressor: compresses the large tensors.
      min_size: smallest number of elements of a large tensor.
      scope: the scope of the large tensors.
    """
    inner = build(scope, REGISTRY, "scope", compressor)
    dense = make("none")

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        large = [leaf for leaf in leaves if leaf.spec.size >= min_size]
        small = [leaf for leaf in leaves if leaf.spec.size < min_size]
        return inner.groups(large) + [Group((leaf,), dense) for leaf in small]

    title = f"{name}: {compressor.name}"
    return Plan(title, groups, (*inner.compressors, dense), inner.patterns)


def _methods_of(
    rules: Sequence[tuple[str, str]],
) -> list[tuple[str, Callable[[Leaf], bool], Compressor]]:
    """For each rule of `policy` its pattern, a test of leaves, and its method."""
    for rule in rules:
        is_pair = isinstance(rule, tuple | list) and len(rule) == 2
        if not is_pair or not all(isinstance(part, str) for part in rule):
            message = f"a rule is a pair such as ('*/bias', 'none'), not {rule!r}"
            raise SpecError(message)
    return [(pattern, leaf_test(pattern), make(spec)) for pattern, spec in rules]


def _shown_rules(rules: Sequence[tuple[str, str]], _: object) -> str:
    return repr(tuple((pattern, c.name) for pattern, _, c in _methods_of(rules)))


@method("rules", given=1)
def policy(
    name: str,
    compressor: Compressor,
    rules: Annotated[Sequence[tuple[str, str]], Shown(_shown_rules)] = (),
) -> Plan:
    """Choose a method for each tensor by its path, its size and its number of axes.

    The first rule whose pattern fits the tensor decides. If no rule fits, a tensor with
    fewer than two axes, such as a bias, is sent as it is, and others are compressed.

    Args:
      compressor: for tensors with two or more axes that no rule fits.
      rules: pairs (pattern, method). A pattern is a path with wildcards ("*/bias",
        "Dense*"), a comparison of `size` or `ndim` ("size<1000", "ndim>=2"), or several
        of these joined by "&". A method is the spec of a compressor.

    Example:
      >>> plan = policy(make("sign"), rules=[("Dense*&ndim>=2", "qsgd(levels=7)")])
      >>> leaf = Leaf("Dense_0/kernel", jax.ShapeDtypeStruct((3, 2), "float32"), 0, 0)
      >>> plan.groups([leaf])[0].compressor.name
      'qsgd(levels=7, bucket=512)'
    """
    methods = _methods_of(rules)
    dense = make("none")

    def method_for(leaf: Leaf) -> Compressor:
        for _, fits, chosen in methods:
            if fits(leaf):
                return chosen
        return compressor if len(leaf.spec.shape) > 1 else dense

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group((leaf,), method_for(leaf)) for leaf in leaves]

    compressors = (compressor, dense, *(chosen for _, _, chosen in methods))
    patterns = tuple(pattern for pattern, _, _ in methods)
    return Plan(f"{name}: {compressor.name}", groups, compressors, patterns)


REGISTRY: dict[str, Callable[..., Plan]] = {
    "bucketed": bucketed,
    "only_large": only_large,
    "per_leaf": per_leaf,
    "policy": policy,
    "whole_tree": whole_tree,
}


def make_plan(scope: str | Call | Plan, compressor: str | Compressor = "none") -> Plan:
    """The plan that a scope makes from a compressor.

    Args:
      scope: spec string, parsed spec, or a plan, which is returned as it is.
      compressor: a compressor of arrays, or its spec string.

    Example:
      >>> make_plan("whole_tree", "sign").title
      'whole_tree: sign'
    """
    if isinstance(scope, Plan):
        return scope
    return build(scope, REGISTRY, "scope", make(compressor))


def joined_spec(group: Group) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the array that a group is compressed as."""
    if len(group.leaves) == 1:
        return group.leaves[0].spec
    dtype = joint_dtype([g.spec.dtype for g in group.leaves])
    return jax.ShapeDtypeStruct((sum(leaf.spec.size for leaf in group.leaves),), dtype)


def _nbytes(spec: jax.ShapeDtypeStruct) -> int:
    """In at least float32: messages of narrow trees are decoded as wide ones."""
    wide = wide_spec(spec)
    return wide.size * wide.dtype.itemsize

"""Which tensors are compressed as one vector, and how a tree is compressed so.

Patterns choose tensors, scopes make a `Plan` of them, and `lift` makes of a plan a
compressor of trees: groups with one compressor go at once.
"""

import dataclasses
import fnmatch
import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.compressors import make
from jaxcomp.core import trees, types
from jaxcomp.core.specs import (
    Call,
    Count,
    Range,
    Shown,
    SpecError,
    build,
    method,
    suggest,
)
from jaxcomp.core.trees import cast, joint_dtype, leaf_numbers, name_of, wide_spec
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State, Tree


class Leaf(NamedTuple):
    """What a plan knows of a tensor of the tree."""

    path: str  # such as "Conv_0/kernel"
    spec: jax.ShapeDtypeStruct
    place: int  # its number among the leaves of the tree
    # The same, but places where a part of a tree has None are counted. So a leaf has
    # the same number in the tree and in its parts, and the same random choices.
    number: int


# Places in the rows of a part are 32-bit numbers, and its rows are a copy in memory.
_LARGEST = 1 << 30
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
    paths, _ = jax.tree_util.tree_flatten_with_path(trees.spec_of(tree))
    named = zip(paths, leaf_numbers(tree), strict=True)
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


def make_plan(
    scope: str | Call | Plan,
    compressor: str | Compressor = "none",
    policy: Sequence[tuple[str, str]] = (),
) -> Plan:
    """The plan that a scope, or a policy instead of it, makes from a compressor.

    Args:
      scope: spec string, parsed spec, or a plan, which is returned as it is.
      compressor: a compressor of arrays, or its spec string.
      policy: the rules of the scope `policy`.

    Example:
      >>> make_plan("whole_tree", "sign").title
      'whole_tree: sign'
    """
    if policy:
        if scope != "per_leaf":
            raise SpecError(
                f"a policy is a scope of its own; {scope!r} cannot be one too"
            )
        return REGISTRY["policy"](make(compressor), rules=policy)
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
    leaves, arrays = jax.tree.leaves(tree), []
    for group in groups:
        tensors = [leaves[leaf.place] for leaf in group.leaves]
        if len(tensors) > 1:
            dtype = joined_spec(group).dtype
            tensors = [x.reshape(-1).astype(dtype) for x in tensors]
        arrays.append(jnp.concatenate(tensors) if len(tensors) > 1 else tensors[0])
    return tuple(arrays)


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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["payload"],
    meta_fields=["members"],
)
@dataclasses.dataclass(frozen=True)
class GroupedPayload:
    """The payload of some groups, with their numbers.

    Whoever decodes it may ask for wider dtypes, and which groups go together depends on
    those that were compressed.
    """

    payload: Payload
    members: tuple[int, ...]


class _Part(NamedTuple):
    """Groups of a plan that go together, as one compressor takes them."""

    members: tuple[int, ...]  # their numbers among all groups, ascending
    compressor: Compressor  # of one array, or of a tuple of arrays if they are several
    spec: Spec  # of what it takes

    def take(self, items: Sequence[Any]) -> Any:
        """What the compressor takes, from a list with an item for each group."""
        own = [items[i] for i in self.members]
        return tuple(own) if len(own) > 1 else own[0]

    def put(self, result: Any, items: list[Any]) -> None:
        """The inverse of `take`: write what the compressor returned into a list."""
        own = result if len(self.members) > 1 else (result,)
        for i, item in zip(self.members, own, strict=True):
            items[i] = item


def _part(groups: Sequence[Group], members: tuple[int, ...]) -> _Part:
    specs = tuple(joined_spec(groups[i]) for i in members)
    one = groups[members[0]].compressor
    if len(members) == 1:
        return _Part(members, one, specs[0])
    assert one.segmented is not None
    return _Part(members, one.segmented, specs)


def _parts_of(groups: Sequence[Group]) -> list[_Part]:
    """Groups with the same compressor and dtype together, if it has a segmented form.

    A part has at most 2^30 elements, unless a single group has more.
    """
    families: dict[tuple[Any, ...], list[int]] = {}
    elements: dict[tuple[Any, ...], int] = {}
    for i, group in enumerate(groups):
        spec, key = joined_spec(group), (i,)
        if group.compressor.segmented is not None:
            key = (id(group.compressor), spec.dtype, 0)
            while key in families and elements[key] + spec.size > _LARGEST:
                key = (*key[:2], key[2] + 1)
        families.setdefault(key, []).append(i)
        elements[key] = elements.get(key, 0) + spec.size
    return [_part(groups, tuple(members)) for members in families.values()]


SUM = "decompress_sum"


class Lifted(NamedTuple):
    """The functions of the compressor of trees that `lift` makes of a plan."""

    plan: Plan

    def vectors(self, spec: Spec) -> list[tuple[Compressor, Spec]]:
        """For each group its compressor and the spec of its vector."""
        return [(g.compressor, joined_spec(g)) for g in groups_of(self.plan, spec)]

    def init(self, spec: Spec) -> State:
        return tuple(c.init(vector) for c, vector in self.vectors(spec))

    def compress(self, tree: Tree, state: State, key: Array) -> tuple[Payload, State]:
        groups = groups_of(self.plan, tree)
        arrays, payloads, states = to_arrays(tree, groups), [], list(state)
        for part in _parts_of(groups):
            # Keys depend on the number of a group alone, not on who is in its part.
            numbers = [groups[i].number for i in part.members]
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.array(numbers))
            x, old = part.take(arrays), part.take(state)
            payload, new = part.compressor.compress(
                x, old, keys if len(numbers) > 1 else keys[0]
            )
            payloads.append(GroupedPayload(payload, part.members))
            part.put(new, states)
        return tuple(payloads), tuple(states)

    def decoded(
        self, how: str, payloads: Payload, spec: Spec, total: Tree = None
    ) -> Tree:
        """The tree that a function of the compressors makes of the payloads.

        Args:
          how: name of the function, of (payload, spec), or of (array, payload).
          payloads: from `compress`.
          spec: of the tree.
          total: what the function takes the arrays of, if it takes any.
        """
        groups = groups_of(self.plan, spec)
        given = None if total is None else to_arrays(total, groups)
        arrays: list[Any] = [None] * len(groups)
        for grouped in payloads:
            part = _part(groups, grouped.members)
            function = getattr(part.compressor, how)
            if given is None:
                part.put(function(grouped.payload, part.spec), arrays)
            else:
                part.put(function(part.take(given), grouped.payload), arrays)
        return to_tree(arrays, groups, wide_spec(spec) if how == SUM else spec)

    def figure(self, name: str) -> Figure:
        """A figure of the plan's compressors, summed over the groups."""

        def of(payloads: Payload, spec: Spec) -> Array:
            groups, found = groups_of(self.plan, spec), []
            for grouped in payloads:
                part = _part(groups, grouped.members)
                for figure in part.compressor.figures:
                    if figure.name == name:
                        value = figure.of(grouped.payload, part.spec)
                        found.append(value.astype(jnp.float32))
            return sum(found, start=jnp.float32(0))

        return Figure(name, of)


def lift(scope: str | Call | Plan, compressor: str | Compressor = "none") -> Compressor:
    """A compressor of trees.

    Args:
      scope: spec string such as "only_large(min_size=1000)", or a `Plan`.
      compressor: a compressor of arrays, or its spec string. A `Plan` already has its
        compressors and ignores it.

    Returns:
      A `Compressor` whose x, x_hat and spec are trees, and whose payload is a tuple of
      `GroupedPayload`, each of one group or of all groups that their compressor can
      take together.

    Example:
      >>> import jax
      >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
      >>> c = lift("whole_tree", "sign")
      >>> (grouped,), _ = c.compress(tree, c.init(tree), jax.random.key(0))
      >>> grouped.members, float(grouped.payload.scale)
      ((0,), 0.75)
    """
    plan = make_plan(scope, compressor)
    lifted, every = Lifted(plan), plan.compressors
    names = dict.fromkeys(figure.name for c in every for figure in c.figures)
    return Compressor(
        name=plan.title,
        init=lifted.init,
        compress=lifted.compress,
        decompress=functools.partial(lifted.decoded, "decompress"),
        accumulate=lambda total, payloads: lifted.decoded(
            "accumulate", payloads, total, total
        ),
        decompress_sum=functools.partial(lifted.decoded, SUM),
        ideal_bits=lambda spec: sum(
            (c.ideal_bits(vector) for c, vector in lifted.vectors(spec)), 0.0
        ),
        contraction=lambda spec: types.worst(
            c.contraction(vector) for c, vector in lifted.vectors(spec)
        ),
        unbiased=all(c.unbiased for c in every),
        aligned=all(c.aligned for c in every),
        support=lambda spec: sum(c.support(v) for c, v in lifted.vectors(spec)),
        figures=tuple(lifted.figure(name) for name in names),
        clear=(
            (lambda tree, payloads: lifted.decoded("clear", payloads, tree, tree))
            if all(c.clear for c in every)
            else None
        ),
    )

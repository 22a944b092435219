"""Lift: from a plan and a compressor of arrays to a compressor of trees."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import (
    Array,
    Compressor,
    Figure,
    Payload,
    Spec,
    State,
    Tree,
    spec_of,
    wide_spec,
)
from jaxcomp.scope.plans import REGISTRY, Group, Leaf, Plan, joined_spec
from jaxcomp.specs import Call, build

__all__ = ["lift"]


def lift(scope: str | Call | Plan, compressor: Compressor) -> Compressor:
    """A compressor of trees.

    Args:
      scope: spec string such as "only_large(min_size=1000)", or a `Plan`.
      compressor: a compressor of arrays; a ready `Plan` has its own.

    Returns:
      A `Compressor` whose x, x_hat and spec are trees, and whose payload is a tuple
      with one payload for each group.

    Example:
        >>> from jaxcomp.compressors import make
        >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2)}
        >>> c = lift("whole_tree", make("sign"))
        >>> payload, _ = c.compress(tree, c.init(tree), jax.random.key(0))
        >>> len(payload), float(payload[0].scale)
        (1, 0.75)
    """
    if isinstance(scope, Plan):
        plan = scope
    else:
        plan = build(scope, REGISTRY, "scope", compressor)

    def init(spec: Spec) -> State:
        return tuple(g.compressor.init(joined_spec(g)) for g in _groups(plan, spec))

    def compress(tree: Tree, state: State, key: Array) -> tuple[Payload, State]:
        leaves = jax.tree.leaves(tree)
        payloads, states = [], []
        for i, (group, old) in enumerate(zip(_groups(plan, tree), state, strict=True)):
            x = _join([leaves[leaf.place] for leaf in group.leaves], group)
            payload, new = group.compressor.compress(x, old, jax.random.fold_in(key, i))
            payloads.append(payload)
            states.append(new)
        return tuple(payloads), tuple(states)

    def decode(which: str, payloads: Payload, spec: Spec) -> Tree:
        specs, structure = jax.tree.flatten(spec)
        leaves: list[Any] = [jnp.zeros(s.shape, s.dtype) for s in specs]
        for group, payload in zip(_groups(plan, spec), payloads, strict=True):
            x = getattr(group.compressor, which)(payload, joined_spec(group))
            for leaf, part in zip(group.leaves, _cut(x, group), strict=True):
                leaves[leaf.place] = part
        return jax.tree.unflatten(structure, leaves)

    def decompress(payloads: Payload, spec: Spec) -> Tree:
        return _cast(decode("decompress", payloads, spec), spec)

    def accumulate(total: Tree, payloads: Payload) -> Tree:
        leaves, structure = jax.tree.flatten(total)
        for group, payload in zip(_groups(plan, total), payloads, strict=True):
            x = _join([leaves[leaf.place] for leaf in group.leaves], group)
            x = group.compressor.accumulate(x, payload)
            for leaf, part in zip(group.leaves, _cut(x, group), strict=True):
                leaves[leaf.place] = part
        return jax.tree.unflatten(structure, leaves)

    def decompress_sum(payloads: Payload, spec: Spec) -> Tree:
        # Tensors without elements are in no group, yet have their dtype like the rest.
        return _cast(decode("decompress_sum", payloads, spec), wide_spec(spec))

    def ideal_bits(spec: Spec) -> float:
        groups = _groups(plan, spec)
        return sum((g.compressor.ideal_bits(joined_spec(g)) for g in groups), 0.0)

    def contraction(spec: Spec) -> float | None:
        groups = _groups(plan, spec)
        deltas = [g.compressor.contraction(joined_spec(g)) for g in groups]
        known = [delta for delta in deltas if delta is not None]
        return min(known, default=1.0) if len(known) == len(deltas) else None

    return Compressor(
        name=compressor.name
        if plan.name == "per_leaf"
        else f"{plan.name}: {compressor.name}",
        init=init,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        decompress_sum=decompress_sum,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=all(c.unbiased for c in plan.compressors),
        aligned=all(c.aligned for c in plan.compressors),
        figures=_figures(plan),
    )


def _figures(plan: Plan) -> tuple[Figure, ...]:
    """Each figure of any of the plan's compressors, summed over the groups."""

    def total(name: str) -> Figure:
        def of(payloads: Payload, spec: Spec) -> Array:
            found = [
                figure.of(payload, joined_spec(group)).astype(jnp.float32)
                for group, payload in zip(_groups(plan, spec), payloads, strict=True)
                for figure in group.compressor.figures
                if figure.name == name
            ]
            return sum(found, start=jnp.float32(0))

        return Figure(name, of)

    names = dict.fromkeys(f.name for c in plan.compressors for f in c.figures)
    return tuple(total(name) for name in names)


def _groups(plan: Plan, tree: Tree) -> list[Group]:
    """The plan's groups for a tree; tensors without elements are in none."""
    paths, _ = jax.tree_util.tree_flatten_with_path(spec_of(tree))
    leaves = [
        Leaf(jax.tree_util.keystr(path, simple=True, separator="/"), spec, i)
        for i, (path, spec) in enumerate(paths)
    ]
    return plan.groups([leaf for leaf in leaves if leaf.spec.size])


def _cast(tree: Tree, spec: Spec) -> Tree:
    return jax.tree.map(lambda part, s: part.astype(s.dtype), tree, spec)


def _join(arrays: list[Array], group: Group) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    dtype = joined_spec(group).dtype
    return jnp.concatenate([array.reshape(-1).astype(dtype) for array in arrays])


def _cut(x: Array, group: Group) -> list[Array]:
    """The inverse of `_join`."""
    if len(group.leaves) == 1:
        return [x]
    parts, start = [], 0
    for leaf in group.leaves:
        part = x[start : start + leaf.spec.size]
        parts.append(part.reshape(leaf.spec.shape))
        start += leaf.spec.size
    return parts

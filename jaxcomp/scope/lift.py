"""Lift: from a plan and a compressor of arrays to a compressor of trees."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import (
    Array,
    Compressor,
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
      with a payload for each group, stacked where groups are alike.

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
        return tuple(b.compressor.init(b.spec) for b in _batches(plan, spec))

    def compress(tree: Tree, state: State, key: Array) -> tuple[Payload, State]:
        leaves = jax.tree.leaves(tree)
        payloads, states = [], []
        batches = _batches(plan, tree)
        for i, (batch, old) in enumerate(zip(batches, state, strict=True)):
            x = _join(leaves, batch)
            payload, new = batch.compressor.compress(x, old, jax.random.fold_in(key, i))
            payloads.append(payload)
            states.append(new)
        return tuple(payloads), tuple(states)

    def decode(which: str, payloads: Payload, spec: Spec) -> Tree:
        specs, structure = jax.tree.flatten(spec)
        leaves: list[Any] = [jnp.zeros(s.shape, s.dtype) for s in specs]
        for batch, payload in zip(_batches(plan, spec), payloads, strict=True):
            x = getattr(batch.compressor, which)(payload, batch.spec)
            for leaf, part in _cut(x, batch):
                leaves[leaf.place] = part
        return jax.tree.unflatten(structure, leaves)

    def decompress(payloads: Payload, spec: Spec) -> Tree:
        return _cast(decode("decompress", payloads, spec), spec)

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
        decompress_sum=decompress_sum,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=all(c.unbiased for c in plan.compressors),
        aligned=all(c.aligned for c in plan.compressors),
    )


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


class _Batch(NamedTuple):
    """Groups whose vectors are alike, compressed by one program.

    A model has many tensors and few shapes. One program for each shape instead of one
    for each tensor compiles several times faster and starts fewer kernels.
    """

    groups: list[Group]
    compressor: Compressor
    spec: jax.ShapeDtypeStruct


# Larger vectors keep a program of their own: they gain nothing, stacking would copy
# them, and under vmap a branch that is hardly ever taken would always be computed.
_ALIKE_UP_TO = 1 << 16


def _batches(plan: Plan, tree: Tree) -> list[_Batch]:
    alike: dict[Any, list[Group]] = {}
    for group in _groups(plan, tree):
        spec = joined_spec(group)
        large = group.leaves[0].place if spec.size > _ALIKE_UP_TO else None
        key = (id(group.compressor), spec.shape, spec.dtype, large)
        alike.setdefault(key, []).append(group)
    return [_batch(groups) for groups in alike.values()]


def _batch(groups: list[Group]) -> _Batch:
    compressor, spec = groups[0].compressor, joined_spec(groups[0])
    if len(groups) == 1:
        return _Batch(groups, compressor, spec)
    stacked = jax.ShapeDtypeStruct((len(groups), *spec.shape), spec.dtype)
    return _Batch(groups, _each_row(compressor), stacked)


def _each_row(compressor: Compressor) -> Compressor:
    """Compress each row of an array by itself, with its own key and state."""

    def row(spec: Spec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(spec.shape[1:], spec.dtype)

    def init(spec: Spec) -> State:
        one = compressor.init(row(spec))
        return jax.tree.map(lambda s: jnp.stack([s] * spec.shape[0]), one)

    def compress(x: Array, state: State, key: Array) -> tuple[Payload, State]:
        keys = jax.random.split(key, x.shape[0])
        return jax.vmap(compressor.compress)(x, state, keys)

    def decompress(payload: Payload, spec: Spec) -> Array:
        return jax.vmap(lambda p: compressor.decompress(p, row(spec)))(payload)

    def decompress_sum(payloads: Payload, spec: Spec) -> Array:
        def one(payload: Payload) -> Array:
            return compressor.decompress_sum(payload, row(spec))

        return jax.vmap(one, in_axes=1)(payloads)  # the first axis is summed

    return compressor._replace(
        init=init,
        compress=compress,
        decompress=decompress,
        decompress_sum=decompress_sum,
    )


def _join(leaves: list[Array], batch: _Batch) -> Array:
    """The array that a batch compresses, from all leaves of the tree."""
    rows = []
    for group in batch.groups:
        parts = [leaves[leaf.place] for leaf in group.leaves]
        if len(parts) > 1:
            flat = [part.reshape(-1).astype(batch.spec.dtype) for part in parts]
            parts = [jnp.concatenate(flat)]
        rows += parts
    return rows[0] if len(rows) == 1 else jnp.stack(rows)


def _cut(x: Array, batch: _Batch) -> list[tuple[Leaf, Array]]:
    """The inverse of `_join`: each leaf with its part."""
    rows = [x] if len(batch.groups) == 1 else list(x)
    pairs = []
    for row, group in zip(rows, batch.groups, strict=True):
        sizes = [leaf.spec.size for leaf in group.leaves]
        ends = np.cumsum(sizes).tolist()
        for leaf, end, size in zip(group.leaves, ends, sizes, strict=True):
            part = row if len(ends) == 1 else row[end - size : end]
            pairs.append((leaf, part.reshape(leaf.spec.shape)))
    return pairs

"""Scopes lift a compressor from arrays to trees: what is compressed as one vector.

A scope is a plan: it puts the tensors of a tree into groups, each with a compressor. A
group of one keeps the tensor's shape; a larger group is joined into one vector. `lift`
turns a plan into a `Compressor` of trees with the same facts and laws. No scope names a
method, except that small tensors may go dense.
"""

import functools
from collections.abc import Callable, Sequence
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
from jaxcomp.compressors import make
from jaxcomp.specs import Call, build

__all__ = [
    "REGISTRY",
    "Group",
    "Leaf",
    "Plan",
    "bucketed",
    "lift",
    "only_large",
    "per_leaf",
    "whole_tree",
]


class Leaf(NamedTuple):
    """One tensor of the tree, as a plan sees it."""

    path: str  # such as "Conv_0/kernel"
    spec: jax.ShapeDtypeStruct
    place: int  # position among all leaves of the tree


class Group(NamedTuple):
    """Tensors that are compressed as one vector, and how."""

    leaves: tuple[Leaf, ...]
    compressor: Compressor


class Plan(NamedTuple):
    """How a tree is cut into groups."""

    name: str
    groups: Callable[[Sequence[Leaf]], list[Group]]
    compressors: tuple[Compressor, ...]  # all that may occur, for the facts


def per_leaf(compressor: Compressor) -> Plan:
    """Compress every tensor by itself, in its own shape."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group((leaf,), compressor) for leaf in leaves]

    return Plan("per_leaf", groups, (compressor,))


def whole_tree(compressor: Compressor) -> Plan:
    """Join all tensors into one vector: one threshold, norm or scale for the model."""

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        return [Group(tuple(leaves), compressor)] if leaves else []

    return Plan("whole_tree", groups, (compressor,))


def bucketed(compressor: Compressor, bytes: int = 25_000_000) -> Plan:
    """Join neighbouring tensors into vectors of at most `bytes`; a tensor is not cut.

    Args:
      compressor: applied to every bucket.
      bytes: upper limit of a bucket; a larger tensor has a bucket of its own.
    """
    if not isinstance(bytes, int) or bytes < 1:
        raise ValueError(f"bytes is a whole number of at least 1, not {bytes}")

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        buckets: list[Group] = []
        for leaf in leaves:
            joined = Group((*buckets[-1].leaves, leaf), compressor) if buckets else None
            if joined is None or _nbytes(_joined_spec(joined)) > bytes:
                buckets.append(Group((leaf,), compressor))
            else:
                buckets[-1] = joined
        return buckets

    return Plan(f"bucketed(bytes={bytes})", groups, (compressor,))


def only_large(
    compressor: Compressor, min_size: int = 1024, scope: str | Call = "per_leaf"
) -> Plan:
    """Send tensors of fewer than `min_size` elements dense, in the same message.

    Biases and norms are a thousandth of the bytes and the first to suffer.

    Args:
      compressor: applied to the large tensors.
      min_size: elements from which on a tensor is large.
      scope: the scope of the large tensors.
    """
    if not isinstance(min_size, int) or min_size < 0:
        raise ValueError(f"min_size is a whole number of at least 0, not {min_size}")
    inner = build(scope, REGISTRY, "scope", compressor)
    dense = make("none")

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        large = [leaf for leaf in leaves if leaf.spec.size >= min_size]
        small = [leaf for leaf in leaves if leaf.spec.size < min_size]
        return inner.groups(large) + [Group((leaf,), dense) for leaf in small]

    name = f"only_large(min_size={min_size}, scope={inner.name})"
    return Plan(name, groups, (*inner.compressors, dense))


REGISTRY: dict[str, Callable[..., Plan]] = {
    "bucketed": bucketed,
    "only_large": only_large,
    "per_leaf": per_leaf,
    "whole_tree": whole_tree,
}


def lift(scope: str | Call | Plan, compressor: Compressor) -> Compressor:
    """A compressor of trees.

    Args:
      scope: spec string such as "only_large(min_size=1000)", or a `Plan`.
      compressor: a compressor of arrays; a ready `Plan` has its own.

    Returns:
      A `Compressor` whose x, x_hat and spec are trees, and whose payload is a tuple
      with a payload for each group, stacked where groups are alike.

    Example:
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
        return sum((g.compressor.ideal_bits(_joined_spec(g)) for g in groups), 0.0)

    def contraction(spec: Spec) -> float | None:
        groups = _groups(plan, spec)
        deltas = [g.compressor.contraction(_joined_spec(g)) for g in groups]
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


def _nbytes(spec: jax.ShapeDtypeStruct) -> int:
    return spec.size * spec.dtype.itemsize


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
        spec = _joined_spec(group)
        large = group.leaves[0].place if spec.size > _ALIKE_UP_TO else None
        key = (id(group.compressor), spec.shape, spec.dtype, large)
        alike.setdefault(key, []).append(group)
    return [_batch(groups) for groups in alike.values()]


def _batch(groups: list[Group]) -> _Batch:
    compressor, spec = groups[0].compressor, _joined_spec(groups[0])
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


def _joined_spec(group: Group) -> jax.ShapeDtypeStruct:
    if len(group.leaves) == 1:
        return group.leaves[0].spec
    dtype = functools.reduce(np.promote_types, [g.spec.dtype for g in group.leaves])
    return jax.ShapeDtypeStruct((sum(leaf.spec.size for leaf in group.leaves),), dtype)


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

"""Payloads: the trees of arrays that methods send, and the one message of a step.

Their shapes do not depend on the data, so shapes and dtypes tell how many bits are
sent. The numbers that a sparsifier or a factorisation sends are in a field with the
name `values`. Compositions and exchanges that add values find them by this name.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.types import Array, Payload, Spec


class Dense(NamedTuple):
    """Every element as it is."""

    values: Array  # in the shape and dtype of the tensor


class Sparse(NamedTuple):
    """Some elements and their places in the flattened tensor."""

    values: Array  # [k]
    indices: Any  # ascending, in a code of `jaxcomp.core.coding.indices`


class Seeded(NamedTuple):
    """Some elements, and a seed from which their places follow."""

    values: Array  # [k]
    seed: Array  # [2] uint32


class Quantized(NamedTuple):
    """Packed integer levels, and the distance of two levels for each bucket."""

    units: Array  # [buckets] float32: an element is unit * level
    packed: Array  # uint8


class Signs(NamedTuple):
    """The sign of each element and one scale for all."""

    scale: Array  # [] float32
    packed: Array  # uint8: one bit for each, set if negative, or as `sign_symbols`


def nbits(payload: Payload) -> int:
    """Number of bits in the arrays of a payload, from their shapes and dtypes.

    Args:
      payload: tree of arrays, tracers or `ShapeDtypeStruct`s.

    Example:
      >>> nbits(Sparse(jnp.zeros(10), jnp.zeros(10, jnp.uint16)))
      480
    """
    leaves = jax.tree.leaves(payload)
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize * 8 for x in leaves)


def map_values(function: Callable[[Any], Any], payload: Payload) -> Payload:
    """The payload tree with all of its `values` replaced.

    Args:
      function: list of all `values` -> list of what replaces them.
      payload: a payload or a tree of payloads, each with a field `values`. In the
        payload of a composition, `values` is a payload itself; then the `values` in
        this inner payload are replaced.
    """
    nodes, structure = jax.tree.flatten(payload, is_leaf=_has_values)
    values = function([_innermost(node) for node in nodes])
    nodes = [_with_innermost(n, v) for n, v in zip(nodes, values, strict=True)]
    return jax.tree.unflatten(structure, nodes)


def payload_values(payload: Payload) -> list[Any]:
    """The `values` of all payloads in a tree, or in what they consist of.

    Example:
      >>> [v.shape for v in payload_values((Dense(jnp.ones(3)), Dense(jnp.ones(2))))]
      [(3,), (2,)]
    """
    nodes = jax.tree.leaves(payload, is_leaf=_has_values)
    return [_innermost(node) for node in nodes if _has_values(node)]


def scaled(payload: Payload, factor: float) -> Payload | None:
    """The payload of factor * C(x), or None where C(x) does not follow from `values`.

    Its values are in at least float32. Adding it to a tensor costs as much as adding
    the payload itself.

    Args:
      payload: of a method whose `decompress` is linear in `values`.
      factor: -1, or a power of two, which rounds nothing.

    Example:
      >>> scaled(Dense(jnp.array([1.0, -2.0])), 0.5).values.tolist()
      [0.5, -1.0]
      >>> scaled(Signs(jnp.float32(1), jnp.uint8(0)), 0.5) is None
      True
    """
    nodes = jax.tree.leaves(payload, is_leaf=_has_values)
    values = payload_values(payload)
    are_real = [
        isinstance(v, jax.Array) and jnp.issubdtype(v.dtype, jnp.floating)
        for v in values
    ]
    if len(values) < len(nodes) or not all(are_real):
        return None

    wide = [v.astype(np.promote_types(v.dtype, np.float32)) for v in values]
    times = [v * np.asarray(factor, v.dtype) for v in wide]
    return map_values(lambda _: times, payload)


def _has_values(node: Any) -> bool:
    return hasattr(node, "values") and hasattr(node, "_replace")


def _innermost(node: Any) -> Any:
    return _innermost(node.values) if _has_values(node) else node


def _with_innermost(node: Any, values: Any) -> Any:
    if not _has_values(node):
        return values
    return node._replace(values=_with_innermost(node.values, values))


_UNSIGNED = {4: jnp.uint32, 2: jnp.uint16, 1: jnp.uint8}


def fuse(payload: Payload) -> Array:
    """All arrays of a payload tree as one uint32 array.

    Arrays with elements of the same size are joined before they are padded to whole
    words, so a message has less than two words of padding. Elements are not converted:
    a bfloat16 takes two bytes, while on some backends a collective of bfloat16 arrays
    sends four.

    Example:
      >>> fuse(Dense(jnp.ones(3, jnp.float16)))
      Array([1006648320,      15360], dtype=uint32)
    """
    by_width: dict[int, list[Array]] = {4: [], 2: [], 1: []}
    for leaf in jax.tree.leaves(payload):
        width = _wire_width(leaf.dtype)
        bits = jax.lax.bitcast_convert_type(leaf, _UNSIGNED[width])
        by_width[width].append(bits.reshape(-1))
    parts = []
    for width, arrays in by_width.items():
        if not arrays:
            continue
        flat, lanes = jnp.concatenate(arrays), 4 // width
        if lanes > 1:
            flat = jnp.pad(flat, (0, -flat.size % lanes)).reshape(-1, lanes)
            flat = jax.lax.bitcast_convert_type(flat, jnp.uint32)
        parts.append(flat)
    return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.uint32)


def split(words: Array, spec: Spec) -> Payload:
    """The inverse of `fuse`.

    Args:
      words: the result of `fuse`.
      spec: shapes and dtypes of the payload tree.
    """
    leaves, structure = jax.tree.flatten(spec)
    widths = [_wire_width(leaf.dtype) for leaf in leaves]
    result: list[Any] = [None] * len(leaves)
    start = 0
    for width in (4, 2, 1):
        members = {i: leaf for i, leaf in enumerate(leaves) if widths[i] == width}
        shapes = [
            (*x.shape, 2) if jnp.dtype(x.dtype).itemsize == 8 else x.shape
            for x in members.values()
        ]
        count = -(-sum(map(math.prod, shapes)) * width // 4)
        packed = words[start : start + count]
        flat = jax.lax.bitcast_convert_type(packed, _UNSIGNED[width]).reshape(-1)
        start += count
        offset = 0
        for (i, leaf), shape in zip(members.items(), shapes, strict=True):
            part = flat[offset : offset + math.prod(shape)].reshape(shape)
            result[i] = jax.lax.bitcast_convert_type(part, leaf.dtype)
            offset += math.prod(shape)
    return jax.tree.unflatten(structure, result)


def _wire_width(dtype: Any) -> int:
    """Bytes of the unsigned integers that an element becomes; 8 bytes become two."""
    whole_bytes = False
    if jnp.issubdtype(dtype, jnp.integer):
        whole_bytes = jnp.iinfo(dtype).bits % 8 == 0
    elif jnp.issubdtype(dtype, jnp.floating):
        whole_bytes = jnp.finfo(dtype).bits % 8 == 0
    if not whole_bytes:
        raise TypeError(f"pack {dtype} arrays into unsigned words before sending")
    return min(jnp.dtype(dtype).itemsize, 4)

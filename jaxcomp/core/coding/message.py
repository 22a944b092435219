"""The message of a step: all payloads in one array."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.core.types import Array, Payload, Spec


def fuse(payload: Payload) -> Array:
    """All arrays of a payload tree as one uint32 array.

    Arrays with elements of the same size are joined before they are padded to whole
    words, so a message has less than two words of padding. Elements are not converted:
    a bfloat16 takes two bytes, while on some backends a collective of bfloat16 arrays
    sends four.

    Example:
      >>> from jaxcomp.core.coding.payloads import Dense
      >>> fuse(Dense(jnp.ones(3, jnp.float16)))
      Array([1006648320,      15360], dtype=uint32)
    """
    by_width: dict[int, list[Array]] = {4: [], 2: [], 1: []}
    for leaf in jax.tree.leaves(payload):
        width = _wire_width(leaf.dtype)
        bits = jax.lax.bitcast_convert_type(leaf, _UNSIGNED[width])
        by_width[width].append(bits.reshape(-1))
    parts = [_to_words(jnp.concatenate(a)) for a in by_width.values() if a]
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
        members = [i for i, w in enumerate(widths) if w == width]
        sizes = [_wire_size(leaves[i]) for i in members]
        count = -(-sum(sizes) * width // 4)
        flat = _from_words(words[start : start + count], width)
        start += count
        offset = 0
        for i, size in zip(members, sizes, strict=True):
            result[i] = _from_unsigned(flat[offset : offset + size], leaves[i])
            offset += size
    return jax.tree.unflatten(structure, result)


_UNSIGNED = {4: jnp.uint32, 2: jnp.uint16, 1: jnp.uint8}


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


def _wire_size(leaf: Any) -> int:
    """Number of these unsigned integers in a leaf."""
    nbytes = math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize
    return nbytes // _wire_width(leaf.dtype)


def _from_unsigned(flat: Array, leaf: Any) -> Array:
    wide = jnp.dtype(leaf.dtype).itemsize == 8
    shape = (*leaf.shape, 2) if wide else leaf.shape
    return jax.lax.bitcast_convert_type(flat.reshape(shape), leaf.dtype)


def _to_words(flat: Array) -> Array:
    lanes = 4 // flat.dtype.itemsize
    if lanes == 1:
        return flat
    flat = jnp.pad(flat, (0, -flat.size % lanes)).reshape(-1, lanes)
    return jax.lax.bitcast_convert_type(flat, jnp.uint32)


def _from_words(words: Array, width: int) -> Array:
    return jax.lax.bitcast_convert_type(words, _UNSIGNED[width]).reshape(-1)

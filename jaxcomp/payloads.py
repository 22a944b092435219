"""Wire formats, bit packing, and the one fused buffer that a step sends.

A payload is a tree of arrays with static shapes, so its size is read off shapes and
dtypes rather than claimed. Whatever a sparsifier or a factorisation sends as numbers is
in a field called `values`: composition and value-summing exchanges rely on that name.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Payload, Spec

__all__ = [
    "Dense",
    "Quantized",
    "Seeded",
    "Signs",
    "Sparse",
    "bit_width",
    "fuse",
    "index_dtype",
    "map_values",
    "nbits",
    "pack",
    "split",
    "unpack",
]


class Dense(NamedTuple):
    """Every element as it is."""

    values: Array  # the tensor's own shape and dtype


class Sparse(NamedTuple):
    """Chosen elements with their places in the flattened tensor."""

    values: Array  # [k]
    indices: Array  # [k] uint16 or uint32


class Seeded(NamedTuple):
    """Chosen elements whose places follow from a seed."""

    values: Array  # [k]
    seed: Array  # [2] uint32


class Quantized(NamedTuple):
    """Integer levels, packed, with one step size for each bucket."""

    units: Array  # [buckets] float32: an element is units * level
    words: Array  # uint32


class Signs(NamedTuple):
    """One bit for each element and one scale for all."""

    scale: Array  # [] float32
    words: Array  # [ceil(n / 32)] uint32; a set bit is a negative sign


def nbits(payload: Payload) -> int:
    """Bits of the arrays that are sent, from their shapes and dtypes.

    Args:
      payload: tree of arrays, tracers or `ShapeDtypeStruct`s.

    Example:
        >>> nbits(Sparse(jnp.zeros(10), jnp.zeros(10, jnp.uint16)))
        480
    """
    leaves = jax.tree.leaves(payload)
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize * 8 for x in leaves)


def index_dtype(size: int) -> Any:
    """The narrowest unsigned type that addresses `size` places."""
    if size <= 1 << 16:
        return jnp.uint16
    if size <= 1 << 32:
        return jnp.uint32
    raise ValueError(f"{size} elements do not fit 32-bit indices: use scope 'bucketed'")


def bit_width(symbols: int) -> int:
    """Bits that tell `symbols` values apart: ceil(log2(symbols)).

    Example:
        >>> [bit_width(n) for n in (2, 3, 15, 16, 255)]
        [1, 2, 4, 4, 8]
    """
    return max(1, (symbols - 1).bit_length())


def pack(symbols: Array, bits: int) -> Array:
    """Pack small unsigned integers into 32-bit words, `bits` each.

    32 symbols fill exactly `bits` words. Symbol i of m = ceil(n / 32) columns stands in
    row i // m, so that every shift works on whole contiguous rows: no strides, and the
    compiler vectorises all of it.

    Args:
      symbols: [n] integers in [0, 2^bits).
      bits: 1 to 32.

    Returns:
      [bits * ceil(n / 32)] uint32.

    Example:
        >>> pack(jnp.array([1, 0, 1]), bits=1)
        Array([5], dtype=uint32)
    """
    columns = -(-symbols.size // 32)
    rows = jnp.pad(symbols.astype(jnp.uint32), (0, columns * 32 - symbols.size))
    if 32 % bits == 0:  # a few operations instead of many: compiles much faster
        fields = rows.reshape(bits, 32 // bits, columns) << _shifts(bits)
        return jnp.sum(fields, axis=1, dtype=jnp.uint32).reshape(-1)
    rows = rows.reshape(32, columns)
    words = [jnp.zeros(columns, jnp.uint32)] * bits
    for row in range(32):
        word, shift = divmod(row * bits, 32)
        words[word] |= rows[row] << np.uint32(shift)
        if shift + bits > 32:
            words[word + 1] |= rows[row] >> np.uint32(32 - shift)
    return jnp.concatenate(words)


def unpack(words: Array, bits: int, size: int) -> Array:
    """The inverse of `pack`.

    Args:
      words: [bits * ceil(size / 32)] uint32.
      bits: bits of one symbol.
      size: number of symbols.

    Returns:
      [size] uint32.

    Example:
        >>> unpack(pack(jnp.array([3, 0, 6, 5]), bits=3), bits=3, size=4)
        Array([3, 0, 6, 5], dtype=uint32)
    """
    mask = np.uint32((1 << bits) - 1)
    if 32 % bits == 0:
        fields = words.reshape(bits, 1, -1) >> _shifts(bits)
        return (fields & mask).reshape(-1)[:size]
    words = words.reshape(bits, -1)
    rows = []
    for row in range(32):
        word, shift = divmod(row * bits, 32)
        symbol = words[word] >> np.uint32(shift)
        if shift + bits > 32:
            symbol |= words[word + 1] << np.uint32(32 - shift)
        rows.append(symbol & mask)
    return jnp.concatenate(rows)[:size]


def map_values(function: Callable[[Any], Any], payload: Payload) -> Payload:
    """Apply `function` to the list of all `values` in a payload tree at once.

    Args:
      function: list of arrays -> list of as many arrays.
      payload: a payload or a tree of payloads, each with a `values` field. Where a
        composition has put a payload there, its own `values` are meant.
    """
    nodes, structure = jax.tree.flatten(payload, is_leaf=_has_values)
    values = function([_innermost(node) for node in nodes])
    nodes = [_with_innermost(n, v) for n, v in zip(nodes, values, strict=True)]
    return jax.tree.unflatten(structure, nodes)


def fuse(payload: Payload) -> Array:
    """The whole payload tree as one uint32 array: one message, whatever the tensors.

    Arrays of equal width are joined before they are padded to whole words, so all the
    padding of a message is less than two words. Bits are moved, never converted: bf16
    travels as two bytes, which a collective of bf16 would not do on every backend.

    Example:
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


def split(words: Array, like: Spec) -> Payload:
    """The inverse of `fuse`.

    Args:
      words: what `fuse` returned.
      like: the payload tree's shapes and dtypes.
    """
    leaves, structure = jax.tree.flatten(like)
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


def _shifts(bits: int) -> Array:
    """Places of the fields in a word, as a column beside [bits, fields, columns]."""
    return jnp.arange(0, 32, bits, dtype=jnp.uint32)[None, :, None]


_UNSIGNED = {4: jnp.uint32, 2: jnp.uint16, 1: jnp.uint8}


def _has_values(node: Any) -> bool:
    return hasattr(node, "values") and hasattr(node, "_replace")


def _innermost(node: Any) -> Any:
    return _innermost(node.values) if _has_values(node) else node


def _with_innermost(node: Any, values: Any) -> Any:
    if not _has_values(node):
        return values
    return node._replace(values=_with_innermost(node.values, values))


def _wire_width(dtype: Any) -> int:
    """Bytes of the unsigned integer that carries this dtype; 8-byte types use two."""
    whole_bytes = False
    if jnp.issubdtype(dtype, jnp.integer):
        whole_bytes = jnp.iinfo(dtype).bits % 8 == 0
    elif jnp.issubdtype(dtype, jnp.floating):
        whole_bytes = jnp.finfo(dtype).bits % 8 == 0
    if not whole_bytes:
        raise TypeError(f"pack {dtype} arrays into unsigned words before sending")
    return min(jnp.dtype(dtype).itemsize, 4)


def _wire_size(leaf: Any) -> int:
    """Elements of that unsigned type in one leaf."""
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

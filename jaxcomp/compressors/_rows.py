"""Numbers of each tensor and packed symbols, where many tensors lie in rows.

This file is not a method. The numbers are those of `_buckets.py` with a bucket for each
tensor; sums are added in another order, so that their last bits may differ.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import selection
from jaxcomp.base import Array
from jaxcomp.coding.packing import (
    bit_width,
    digits_of,
    pack_symbols,
    unpack_symbols,
)
from jaxcomp.segments import Segments, cut, from_rows, join, to_rows

__all__ = ["packed", "peaks", "row_sums", "unpacked"]

_LANES = 32  # sums of neighbouring columns, which CPUs and GPUs add side by side


def peaks(rows: Array, segments: Segments) -> Array:
    """Largest magnitude of each tensor in float32; that of a NaN is the largest.

    Example:
      >>> peaks(jnp.array([[1.0, -3.0], [2.0, 0.0]]), Segments((2, 1), 2))
      Array([3., 2.], dtype=float32)
    """
    largest = segments.maxima(jnp.max(selection.magnitude_bits(rows), axis=1))
    return jax.lax.bitcast_convert_type(largest, rows.dtype).astype(jnp.float32)


def row_sums(terms: Array) -> Array:
    """Sum of each row of computed floats of at least 0, without storing the terms.

    Example:
      >>> row_sums(jnp.ones((2, 64)))
      Array([64., 64.], dtype=float32)
    """
    lanes = min(_LANES, terms.shape[1])
    parts = terms.reshape(terms.shape[0], -1, lanes)

    def add(a: Array, b: Array) -> Array:
        # The maximum changes no sum. Without it XLA's reduction would store all terms.
        return jnp.maximum(a + b, np.float32(0))

    return jnp.sum(jax.lax.reduce(parts, np.float32(0), add, (1,)), axis=1)


def packed(symbols: Array, alphabet: int, segments: Segments) -> Array:
    """The symbols of all tensors in bytes, without those of the padding.

    If rows are whole numbers of bytes, each tensor begins a new byte. Otherwise the
    symbols are joined first, and only the last byte is not full.

    Args:
      symbols: [rows, width] integers in [0, alphabet).
      alphabet: number of different symbols.
      segments: of the rows.

    Example:
      >>> packed(jnp.ones((2, 64), jnp.uint8), 2, Segments((8, 16), 64))
      Array([255, 255, 255], dtype=uint8)
    """
    if _fills_bytes(alphabet):
        flat = pack_symbols(symbols.reshape(-1), alphabet)
        return join(from_rows(flat, _in_bytes(segments, alphabet)))
    return pack_symbols(join(from_rows(symbols, segments)), alphabet)


def unpacked(packed: Array, alphabet: int, segments: Segments) -> Array:
    """The inverse of `packed`, as [rows, width] uint32."""
    if _fills_bytes(alphabet):
        narrow = _in_bytes(segments, alphabet)
        flat = to_rows(cut(packed, narrow.sizes), narrow).reshape(-1)
        size = segments.rows * segments.width
        symbols = unpack_symbols(flat, alphabet, size)
        return symbols.reshape(segments.rows, segments.width)
    symbols = unpack_symbols(packed, alphabet, sum(segments.sizes))
    return to_rows(cut(symbols, segments.sizes), segments)


def _fills_bytes(alphabet: int) -> bool:
    """Whether rows, whose width is a power of two, are whole numbers of bytes."""
    return digits_of(alphabet) * bit_width(alphabet) == 8


def _in_bytes(segments: Segments, alphabet: int) -> Segments:
    """The same rows, with their width and sizes in bytes of packed symbols."""
    digits = digits_of(alphabet)
    sizes = tuple(-(-size // digits) for size in segments.sizes)
    return Segments(sizes, segments.width // digits)

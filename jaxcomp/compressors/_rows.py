"""Numbers of each tensor and packed symbols, where many tensors lie in rows.

This file is not a method. The numbers are those of `_buckets.py`, of every bucket of
every tensor. Sums are added in another order, so that their last bits may differ.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array
from jaxcomp.coding.packing import (
    bit_width,
    digits_of,
    pack_symbols,
    unpack_symbols,
)
from jaxcomp.compressors import _buckets
from jaxcomp.magnitudes import magnitude_bits
from jaxcomp.segments import Segments, cut, from_rows, join, to_rows

__all__ = [
    "Shares",
    "draws_of_each",
    "packed",
    "row_sums",
    "unpacked",
    "words_of_each",
]

_FEW = 8  # terms that are added in one step


class Shares(NamedTuple):
    """Which rows share a scale: those of a tensor, or none, as each is a bucket.

    Example:
      >>> segments, rows = Segments((2, 1), 1), jnp.array([[1.0], [-3.0], [2.0]])
      >>> Shares(segments, by_tensor=True).peaks(rows)
      Array([3., 2.], dtype=float32)
    """

    segments: Segments
    by_tensor: bool

    def peaks(self, rows: Array) -> Array:
        """Largest magnitude of each share in float32; that of a NaN is the largest."""
        bits = jnp.max(magnitude_bits(rows), axis=1)
        bits = self.segments.maxima(bits) if self.by_tensor else bits
        return jax.lax.bitcast_convert_type(bits, rows.dtype).astype(jnp.float32)

    def norms(self, rows: Array, scales: Array) -> Array:
        """Euclidean norm of each share times its scale, which is positive."""
        scaled = jnp.abs(rows.astype(jnp.float32)) * self.of_rows(scales)[:, None]
        sums = row_sums(jnp.square(scaled))
        return jnp.sqrt(self.segments.sums(sums) if self.by_tensor else sums)

    def counts(self) -> Array:
        """Elements of each share in float32."""
        sizes, width = self.segments.sizes, self.segments.width
        if self.by_tensor:
            return jnp.array(sizes, jnp.float32)
        return jnp.concatenate([_buckets.counts(size, width) for size in sizes])

    def of_tensors(self, values: Sequence[float]) -> np.ndarray:
        """[tensors] -> [shares]: for each share the value of its tensor."""
        each = np.array(values, np.float32)
        return each if self.by_tensor else each[self.segments.owners]

    def to_levels(
        self,
        rows: Array,
        scales: Array,
        units: Array,
        levels: int,
        keys: Array | None,
    ) -> Array:
        """[rows, width] symbols; as `_buckets.to_levels`.

        Args:
          rows: of all tensors.
          scales: of the shares.
          units: of the shares.
          levels: the largest multiple of a unit.
          keys: of the tensors, for random rounding; None rounds to the nearest.
        """
        width, by_row = self.segments.width, (self.of_rows(scales), self.of_rows(units))
        draws = None if keys is None else draws_of_each(keys, self.segments)
        flat = _buckets.to_levels(rows.reshape(-1), width, *by_row, levels, draws)
        return flat.reshape(rows.shape)

    def from_levels(self, symbols: Array, units: Array, levels: int) -> Array:
        """The inverse of `to_levels` in float32."""
        level = symbols.astype(jnp.float32) - np.float32(levels)
        return level * self.of_rows(units)[:, None]

    def of_rows(self, values: Array) -> Array:
        """[shares] -> [rows]: for each row the value of its share."""
        return self.segments.spread(values)[:, 0] if self.by_tensor else values


def draws_of_each(keys: Array, segments: Segments) -> Array:
    """[rows * width] uniform numbers: each tensor has those of its own key.

    Example:
      >>> keys = jax.random.split(jax.random.key(0))
      >>> draws = draws_of_each(keys, Segments((3, 2), 2)).reshape(-1)
      >>> draws[4:] == noise.uniform(noise.seed_of(keys[1]), (2,))
      Array([ True,  True], dtype=bool)
    """
    return noise.fraction(words_of_each(keys, segments)).reshape(-1)


def words_of_each(keys: Array, segments: Segments) -> Array:
    """[rows, width] random words: each tensor has those of its own key."""
    seeds = jax.vmap(noise.seed_of)(keys)
    a, b = (segments.spread(seeds[:, i]) for i in range(2))
    return noise.words_at(segments.places_in_tensor, a, b)


def row_sums(terms: Array) -> Array:
    """Sum of each row of floats of at least 0, in an order that the width alone fixes.

    Example:
      >>> row_sums(jnp.ones((2, 64)))
      Array([64., 64.], dtype=float32)
    """
    width = terms.shape[1]
    while width % 2 == 0:
        few = math.gcd(_FEW, width)
        width //= few
        # Neighbours go into neighbouring sums, which vectorises: a reduction of XLA's
        # takes seven times as long on a CPU.
        parts = [terms[:, i * width : (i + 1) * width] for i in range(few)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        terms = parts[0]

    def add(a: Array, b: Array) -> Array:
        # The maximum changes no sum. Without it XLA would add in an order of its own,
        # which depends on the number of rows.
        return jnp.maximum(a + b, np.float32(0))

    return jax.lax.reduce(terms, np.float32(0), add, (1,))


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
    if _fills_bytes(alphabet, segments):
        flat = pack_symbols(symbols.reshape(-1), alphabet)
        return join(from_rows(flat, _in_bytes(segments, alphabet)))
    return pack_symbols(join(from_rows(symbols, segments)), alphabet)


def unpacked(packed: Array, alphabet: int, segments: Segments) -> Array:
    """The inverse of `packed`, as [rows, width] uint32."""
    if _fills_bytes(alphabet, segments):
        narrow = _in_bytes(segments, alphabet)
        flat = to_rows(cut(packed, narrow.sizes), narrow).reshape(-1)
        size = segments.rows * segments.width
        symbols = unpack_symbols(flat, alphabet, size)
        return symbols.reshape(segments.rows, segments.width)
    symbols = unpack_symbols(packed, alphabet, sum(segments.sizes))
    return to_rows(cut(symbols, segments.sizes), segments)


def _fills_bytes(alphabet: int, segments: Segments) -> bool:
    """Whether the symbols of a row are whole bytes, one after the other."""
    digits = digits_of(alphabet)
    return digits * bit_width(alphabet) == 8 and segments.width % digits == 0


def _in_bytes(segments: Segments, alphabet: int) -> Segments:
    """The same rows, with their width and sizes in bytes of packed symbols."""
    digits = digits_of(alphabet)
    sizes = tuple(-(-size // digits) for size in segments.sizes)
    return Segments(sizes, segments.width // digits)

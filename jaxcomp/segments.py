"""Segments: many tensors in the rows of one matrix, and numbers of each tensor.

Each tensor begins a new row. So a number of a row belongs to one tensor: what a method
asks of every tensor is a reduction over the columns, which vectorises, and a small one
over the rows of a tensor. A threshold or a scale goes back as one number for each row.
The size of the program does not depend on the number of tensors, and the numbers of a
tensor do not depend on which other tensors share the matrix.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array

__all__ = ["Segments", "cut", "from_rows", "join", "segments_of", "to_rows"]

# Of rows. It is the same for all tensors, because sums depend on it in their last bits.
_WIDTH = 512
_TOGETHER = 128  # rows whose numbers are reduced in one step


class Segments(NamedTuple):
    """Which rows belong to which tensor."""

    sizes: tuple[int, ...]  # elements of each tensor, all above 0
    width: int  # of a row

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of each tensor."""
        return tuple(-(-size // self.width) for size in self.sizes)

    @property
    def rows(self) -> int:
        """Rows of all tensors."""
        return sum(self.heights)

    @property
    def starts(self) -> np.ndarray:
        """First row of each tensor."""
        return _before(self.heights)

    @property
    def owners(self) -> np.ndarray:
        """The tensor that each row belongs to."""
        tensors = np.arange(len(self.sizes), dtype=np.int32)
        return np.repeat(tensors, self.heights)

    @property
    def padding_before(self) -> np.ndarray:
        """For each row, how many elements of padding lie in the rows before it."""
        offsets = self.starts * np.uint32(self.width) - _before(self.sizes)
        return offsets[self.owners]

    @property
    def places_in_tensor(self) -> Array:
        """[rows, width]: for each element its place in its tensor."""
        rows = np.arange(self.rows, dtype=np.uint32) - self.starts[self.owners]
        first = (rows * np.uint32(self.width))[:, None]
        return jnp.asarray(first) + jax.lax.iota(jnp.uint32, self.width)[None, :]

    def in_rows(self, places: Array) -> Array:
        """Places in the vector that joins the tensors -> places in the flat matrix.

        The size of the vector, and what is above it, is beyond the end of the matrix.

        Example:
          >>> Segments((3, 2), 4).in_rows(jnp.array([2, 3, 5], jnp.uint32))
          Array([2, 4, 8], dtype=uint32)
        """
        ends = np.cumsum(self.sizes).astype(np.uint32)
        starts = self.starts * np.uint32(self.width) - _before(self.sizes)
        absent = np.uint32(self.rows * self.width)
        # Without a loop, which a GPU would start anew in each round.
        owner = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
        shift = jnp.asarray(starts).at[owner].get(mode="fill", fill_value=0)
        return jnp.where(places < ends[-1], places + shift, absent)

    def spread(self, values: Array | np.ndarray) -> Array:
        """[tensors] -> [rows, 1]: for each row the value of its tensor."""
        return jnp.asarray(values)[self.owners][:, None]

    def sums(self, values: Array) -> Array:
        """[rows] -> [tensors]: their sums, in an order that the tensor's size fixes."""
        return self._reduced(values, jnp.sum)

    def maxima(self, values: Array) -> Array:
        """[rows] numbers of at least 0 -> [tensors]: their maxima."""
        return self._reduced(values, jnp.max)

    def _reduced(self, values: Array, reduce: Callable[..., Array]) -> Array:
        """A few rows of each tensor at a time, until it has one number."""
        heights = self.heights
        while max(heights) > 1:
            groups = Segments(heights, _TOGETHER)
            row = groups.places_in_tensor
            is_own = row < np.array(heights, np.uint32)[groups.owners][:, None]
            place = row + _before(heights)[groups.owners][:, None]
            place = jnp.where(is_own, place, np.uint32(values.size))
            own = values.at[place].get(mode="fill", fill_value=0)
            values = reduce(own, axis=1).astype(values.dtype)
            heights = groups.heights
        return values


def segments_of(sizes: Sequence[int], width: int | None = None) -> Segments:
    """Rows for tensors of these sizes.

    Args:
      sizes: elements of each tensor.
      width: of the rows, where a method asks for one.

    Example:
      >>> segments_of([1000, 70]).heights
      (2, 1)
    """
    return Segments(tuple(sizes), width or _WIDTH)


def to_rows(arrays: Sequence[Array], segments: Segments) -> Array:
    """Arrays of one dtype as the rows of a matrix; zeros complete their last rows.

    Example:
      >>> to_rows([jnp.ones(2), jnp.ones((1, 1))], Segments((2, 1), 2)).tolist()
      [[1.0, 1.0], [1.0, 0.0]]
    """
    parts = []
    for x, height in zip(arrays, segments.heights, strict=True):
        parts.append(x.reshape(-1))
        absent = height * segments.width - x.size
        if absent:
            parts.append(jnp.zeros(absent, x.dtype))
    return jnp.concatenate(parts).reshape(segments.rows, segments.width)


def from_rows(rows: Array, segments: Segments) -> tuple[Array, ...]:
    """The inverse of `to_rows`, as one vector for each tensor.

    Example:
      >>> from_rows(jnp.array([[1, 2], [3, 0]]), Segments((2, 1), 2))
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    flat, starts = rows.reshape(-1), segments.starts.astype(int) * segments.width
    pairs = zip(starts.tolist(), segments.sizes, strict=True)
    return tuple(flat[start : start + size] for start, size in pairs)


def join(arrays: Sequence[Array]) -> Array:
    """Arrays of one dtype as one vector without padding."""
    return jnp.concatenate([x.reshape(-1) for x in arrays])


def cut(flat: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
    """The inverse of `join`, as one vector for each size.

    Example:
      >>> cut(jnp.array([1, 2, 3]), [2, 1])
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    starts = _before(sizes).tolist()
    return tuple(flat[a : a + n] for a, n in zip(starts, sizes, strict=True))


def _before(counts: Sequence[int]) -> np.ndarray:
    """The sum of all counts before each one."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.uint32)

"""Many tensors as segments of one matrix, and those elements that are sent."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.coding import indices
from jaxcomp.core.coding.payloads import Sparse
from jaxcomp.core.types import Array

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

    def sums(self, values: Array, reduce: Callable[..., Array] = jnp.sum) -> Array:
        """[rows] -> [tensors]: their sums, in an order that the tensor's size fixes.

        A few rows of each tensor at a time, until it has one number.

        Args:
          values: of the rows; at least 0 if another function reduces them.
          reduce: `jax.numpy.max` for maxima.
        """
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


def from_rows(
    rows: Array, segments: Segments, like: Sequence[Any] | None = None
) -> tuple[Array, ...]:
    """The inverse of `to_rows`, in the shapes of `like`; without it, as vectors.

    Example:
      >>> from_rows(jnp.array([[1, 2], [3, 0]]), Segments((2, 1), 2))
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    starts = segments.starts.astype(int) * segments.width
    shapes = [x.shape for x in like] if like else segments.sizes
    return cut(rows.reshape(-1), shapes, starts)


def join(arrays: Sequence[Array]) -> Array:
    """Arrays of one dtype as one vector without padding."""
    return jnp.concatenate([x.reshape(-1) for x in arrays])


def cut(
    flat: Array, shapes: Sequence[Any], starts: np.ndarray | None = None
) -> tuple[Array, ...]:
    """The inverse of `join`, as one array for each shape, which may be a size.

    Example:
      >>> cut(jnp.array([1, 2, 3]), [2, 1])
      (Array([1, 2], dtype=int32), Array([3], dtype=int32))
    """
    sizes = [math.prod(np.atleast_1d(shape)) for shape in shapes]
    starts = _before(sizes) if starts is None else starts
    parts = [flat[a : a + n] for a, n in zip(starts.tolist(), sizes, strict=True)]
    return tuple(map(jnp.reshape, parts, shapes))


def _before(counts: Sequence[int]) -> np.ndarray:
    """The sum of all counts before each one."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.uint32)


def add_at(
    total: Array, places: Array, values: Array, mode: str = "drop", **promises: Any
) -> Array:
    """A tensor with a value added at each place of the flattened tensor.

    Args:
      total: the tensor.
      places: [k] places; those beyond the end are left out.
      values: [k] values, in any float type.
      mode: as in `jax.numpy.ndarray.at`.
      **promises: `indices_are_sorted` or `unique_indices`, as in the same function.

    Example:
      >>> add_at(jnp.zeros(3), jnp.array([1, 3]), jnp.ones(2))
      Array([0., 1., 0.], dtype=float32)
    """
    values = values.astype(total.dtype)
    added = total.reshape(-1).at[places].add(values, mode=mode, **promises)
    return added.reshape(total.shape)


def clear_at(flat: Array, places: Array, values: Array) -> Array:
    """A vector with zeros at the places whose value is not zero.

    Example:
      >>> clear_at(jnp.ones(3), jnp.array([0, 2]), jnp.array([5.0, 0.0]))
      Array([0., 1., 1.], dtype=float32)
    """
    sent = jnp.where(values != 0, places, flat.size)
    return flat.at[sent].set(0, mode="drop")


def send(flat: Array, places: Array, index: str = "auto") -> Sparse:
    """The payload of the elements at ascending places.

    Args:
      flat: [n] the vector.
      places: [k] ascending. The place n means that there is no element; a zero is sent
        for it.
      index: one of `indices.CODES`.

    Example:
      >>> places = jnp.array([1, 3], jnp.uint32)  # the second one is absent
      >>> send(jnp.arange(3.0), places).values
      Array([1., 0.], dtype=float32)
    """
    values = flat.at[places].get(mode="fill", fill_value=0)
    return Sparse(values, indices.encode(places, flat.size + 1, index))


def send_rows(
    rows: Array, segments: Segments, places: Array, index: str = "auto"
) -> Sparse:
    """The payload of elements of many tensors, in one code of places.

    A place in the payload is one in the vector that joins the tensors without padding.

    Args:
      rows: [rows, width] the tensors.
      segments: of the rows.
      places: [k] ascending places in the matrix. Its size means that there is no
        element; a zero is sent for it.
      index: one of `indices.CODES`.

    Example:
      >>> segments = Segments((3, 2), 4)  # the place 4 is the fourth element
      >>> places = jnp.array([1, 4], jnp.uint32)
      >>> send_rows(jnp.ones((2, 4)), segments, places, "plain").indices
      Array([1, 3], dtype=uint16)
    """
    values = rows.reshape(-1).at[places].get(mode="fill", fill_value=0)
    # How much padding lies before each row; behind all rows are absent elements.
    before = segments.starts * np.uint32(segments.width) - _before(segments.sizes)
    size = sum(segments.sizes)
    padding = np.append(before[segments.owners], rows.size - size)
    shift = jnp.asarray(padding, jnp.uint32)[places // np.uint32(segments.width)]
    return Sparse(values, indices.encode(places - shift, size + 1, index))


def read(payload: Any, size: int) -> tuple[Array, Array]:
    """Places and values of a payload made by `send`, from a vector of this size."""
    values = payload.values
    return indices.decode(payload.indices, size + 1, values.size), values

"""Payloads of indices and values, of a fixed number or up to a capacity."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import segments as _segmented
from jaxcomp.compressors._kit import selection
from jaxcomp.compressors._kit.compiled import add_at, clear_at, compressor
from jaxcomp.compressors._kit.magnitudes import magnitude_bits
from jaxcomp.compressors._kit.segments import Segments, Shares
from jaxcomp.compressors._kit.selection import (
    Selected,
    largest_of_each,
    reached_by_each,
)
from jaxcomp.core.coding import indices
from jaxcomp.core.coding import indices as bitmaps
from jaxcomp.core.coding.indices import EliasFano
from jaxcomp.core.coding.payloads import Sparse
from jaxcomp.core.specs import Range
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State

# Some other libraries take the fraction that is DROPPED, so the message for a value
# above 1 says which of the two is meant here.
Keep = Annotated[float, Range(above=0, most=1, says="the fraction kept, in (0, 1]")]


def sparsifier(
    name: str,
    compress: Callable[[Array, State, Array], tuple[Payload, State]],
    room: Callable[[int], int],
    contraction: Callable[[Spec], float | None],
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A biased compressor whose payload has the fields that `send` makes.

    Args:
      name: the spec string that builds the method again.
      compress: (x, state, key) -> (payload, state). The payload has the fields `values`
        and `indices` of `send`.
      room: size of the tensor -> number of elements in a payload.
      contraction: as in `Compressor`.
      figures: as in `Compressor`.
    """

    def ideal_bits(spec: Spec) -> float:
        count = room(spec.size)
        return count * value_bits(spec) + subset_bits(spec.size, count)

    return compressor(
        name,
        compress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        accumulate=_accumulate,
        clear=_clear,
        support=lambda spec: room(spec.size),
        figures=figures,
    )


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
    # The entry beyond all rows belongs to absent elements.
    padding = np.append(segments.padding_before, rows.size - sum(segments.sizes))
    shift = jnp.asarray(padding, jnp.uint32)[places // np.uint32(segments.width)]
    return Sparse(
        values, indices.encode(places - shift, sum(segments.sizes) + 1, index)
    )


def with_segments(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    index: str,
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A sparsifier together with its segmented form.

    Plain places have none: the narrow integers that are enough for the places of a
    short tensor are not enough for those of all tensors.

    Args:
      one: the sparsifier.
      compress: (rows, segments, keys) -> the payload of `send_rows`.
      index: one of `indices.CODES`.
      figures: of the segmented form.
    """
    if index == "plain":
        return one
    return one._replace(segmented=_segmented.of_vector(one, compress, _read, figures))


def _accumulate(total: Array, payload: Payload) -> Array:
    """The `accumulate` of payloads made by `send`."""
    places, values = _read(payload, total.size)
    # Ascending but not unique: all absent elements stand at n, which is out of range.
    return add_at(total, places, values, indices_are_sorted=True)


def _clear(x: Array, payload: Payload) -> Array:
    """The `clear` of payloads made by `send`."""
    places, values = _read(payload, x.size)
    return clear_at(x.reshape(-1), places, values).reshape(x.shape)


def _read(payload: Any, size: int) -> tuple[Array, Array]:
    """Places and values of a payload made by `send`, from a vector of this size."""
    values = payload.values
    return indices.decode(payload.indices, size + 1, values.size), values


def kept(size: int, keep: float) -> int:
    """Number of elements kept of `size`: round(keep * size), at least one.

    Example:
      >>> kept(1000, 0.01), kept(3, 0.01), kept(100, 0.07)
      (10, 1, 7)
    """
    return min(size, max(1, round(keep * size)))


def value_bits(spec: Spec) -> int:
    """Bits of one element."""
    return jnp.finfo(spec.dtype).bits


def subset_bits(n: int, k: int) -> float:
    """log2 of the number of subsets of k places out of n.

    Example:
      >>> round(subset_bits(4, 2), 3)  # six subsets
      2.585
    """
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log / math.log(2)


Overflow = Literal["largest", "nan"]
Cap = Annotated[
    float, Range(above=0, most=1, says="the largest fraction sent, in (0, 1]")
]
_SHORT = 1 << 16  # up to this size `selection` sorts, which makes a smaller program


class Capped(NamedTuple):
    """Elements that reached a threshold."""

    values: Array  # [room]; zeros where fewer reached it
    indices: Array | EliasFano  # ascending; the vector's size where fewer reached it
    passed: Array  # [] or [tensors] uint32: how many reached it, sent or not


def by_threshold(
    name: str,
    floor: Callable[[Array], Array | int],
    cap: float,
    index: str,
    overflow: str,
    contraction: Callable[[Spec], float],
) -> Compressor:
    """A compressor that sends the elements of at least a given magnitude.

    Args:
      name: the spec string that builds the method again.
      floor: largest magnitude -> magnitude bits that an element has to reach. It is
        called with that of one tensor or with those of several.
      cap: largest fraction of the elements that is sent.
      index: one of `indices.CODES`.
      overflow: what is sent if more elements reach the threshold: "largest" or "nan".
      contraction: as in `Compressor`.
    """

    def room(size: int) -> int:
        return kept(size, cap)

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        least = floor(jnp.max(jnp.abs(flat)))
        chosen = _reaching(flat, least, room(flat.size))
        values, places = send(flat, chosen.places, index)
        if overflow == "nan":
            nan = jnp.asarray(jnp.nan, values.dtype)
            values = jnp.where(chosen.passed > np.uint32(values.size), nan, values)
        return Capped(values, places, chosen.passed), state

    def choose(rows: Array, segments: Segments, keys: Array) -> Capped:
        most = [room(size) for size in segments.sizes]
        peaks = Shares(segments, by_tensor=True).peaks(rows).astype(rows.dtype)
        unsigned = magnitude_bits(peaks).dtype
        floors = jnp.broadcast_to(jnp.asarray(floor(peaks), unsigned), peaks.shape)
        chosen = largest_of_each(rows, segments, most, floors)
        passed = reached_by_each(rows, segments, floors)
        values, places = send_rows(rows, segments, chosen.places, index)
        if overflow == "nan":
            is_full = segments.spread(passed > np.array(most, np.uint32))[:, 0]
            # Absent elements lie beyond all rows.
            by_row = jnp.append(is_full, False)
            is_nan = by_row[chosen.places // np.uint32(segments.width)]
            values = jnp.where(is_nan, jnp.asarray(jnp.nan, values.dtype), values)
        return Capped(values, places, passed)

    one = sparsifier(name, compress, room, contraction, (overflow_figure(room),))
    return with_segments(one, choose, index, (overflow_of_each(room),))


def _reaching(flat: Array, floor: Array | int, most: int) -> Selected:
    """The same as `selection.largest`, in one pass if no more than `most` are found."""
    if flat.size <= _SHORT:
        return selection.largest(flat, most, floor)
    floor = jnp.asarray(floor, magnitude_bits(flat).dtype)
    return largest_of(flat, reach(flat, floor), floor, most, most)


def reach(flat: Array, floor: Array) -> Array:
    """Bitmap of the elements whose magnitude bits are at least `floor`."""
    flat, floor = jax.lax.optimization_barrier((flat, floor))
    return bitmaps.to_words(magnitude_bits(flat) >= floor)


def largest_of(
    flat: Array, words: Array, floor: Array, most: int, wanted: int
) -> Selected:
    """All elements that reach a threshold, or the largest ones if these are too many.

    Args:
      flat: [n] the vector.
      words: bitmap of the elements that reach the threshold.
      floor: magnitude bits of the threshold.
      most: more elements than this are too many.
      wanted: how many of the largest elements are taken if there are too many.
    """
    passed = bitmaps.count(words)
    too_many = passed > np.uint32(most)

    def the_largest() -> Array:
        places = selection.largest(flat, wanted, floor).places
        return jnp.pad(places, (0, most - wanted), constant_values=flat.size)

    def all_of_them() -> Array:
        return bitmaps.places(words, most, absent=flat.size)

    places = jax.lax.cond(too_many, the_largest, all_of_them)
    return Selected(places, jnp.where(too_many, np.uint32(wanted), passed), passed)


def overflow_of_each(room: Callable[[int], int]) -> Figure:
    """`overflow_figure` of a payload of several tensors, summed over them.

    Args:
      room: size of a tensor -> number of its elements in a payload.
    """

    def of(payload: Any, specs: Spec) -> Array:
        most = np.array([room(spec.size) for spec in specs], np.uint32)
        return jnp.sum((jnp.maximum(payload.passed, most) - most).astype(jnp.float32))

    return Figure("overflow", of)


def overflow_figure(room: Callable[[int], int]) -> Figure:
    """The figure that says how many elements reached the threshold and found no room.

    Args:
      room: size of the vector -> number of elements in a payload.
    """

    def of(payload: Any, spec: Spec) -> Array:
        most = np.uint32(room(spec.size))
        return (jnp.maximum(payload.passed, most) - most).astype(jnp.float32)

    return Figure("overflow", of)

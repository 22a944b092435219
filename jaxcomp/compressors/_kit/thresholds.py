"""Sparsifiers that send what reaches a threshold, up to a capacity."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import selection
from jaxcomp.compressors._kit.buckets import Shares
from jaxcomp.compressors._kit.making import kept, sparsifier
from jaxcomp.compressors._kit.segments import Segments, send, send_rows
from jaxcomp.compressors._kit.selection import Selected, magnitude_bits
from jaxcomp.core.coding import indices
from jaxcomp.core.specs import Range
from jaxcomp.core.types import Array, Compressor, Figure, Spec, State

Overflow = Literal["largest", "nan"]
Cap = Annotated[
    float, Range(above=0, most=1, says="the largest fraction sent, in (0, 1]")
]
_SHORT = 1 << 16  # up to this size `selection` sorts, which makes a smaller program


class Capped(NamedTuple):
    """Elements that reached a threshold."""

    values: Array  # [capacity]; zeros where fewer reached it
    indices: Array | indices.EliasFano  # ascending; n where fewer did
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

    def capacity(size: int) -> int:
        return kept(size, cap)

    def compress(x: Array, state: State, key: Array) -> tuple[Capped, State]:
        flat = x.reshape(-1)
        least = floor(jnp.max(jnp.abs(flat)))
        chosen = _reaching(flat, least, capacity(flat.size))
        values, places = send(flat, chosen.places, index)
        if overflow == "nan":
            nan = jnp.asarray(jnp.nan, values.dtype)
            values = jnp.where(chosen.passed > np.uint32(values.size), nan, values)
        return Capped(values, places, chosen.passed), state

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Capped:
        most = [capacity(size) for size in segments.sizes]
        peaks = Shares(segments, by_tensor=True).peaks(rows).astype(rows.dtype)
        unsigned = magnitude_bits(peaks).dtype
        floors = jnp.broadcast_to(jnp.asarray(floor(peaks), unsigned), peaks.shape)
        chosen = selection.largest_of_each(rows, segments, most, floors)
        passed = selection.reached_by_each(rows, segments, floors)
        values, places = send_rows(rows, segments, chosen.places, index)
        if overflow == "nan":
            is_full = segments.spread(passed > np.array(most, np.uint32))[:, 0]
            # Absent elements lie beyond all rows.
            by_row = jnp.append(is_full, False)
            is_nan = by_row[chosen.places // np.uint32(segments.width)]
            values = jnp.where(is_nan, jnp.asarray(jnp.nan, values.dtype), values)
        return Capped(values, places, passed)

    return sparsifier(
        name,
        compress,
        compress_rows,
        capacity,
        contraction,
        index,
        (overflow_figure(capacity),),
    )


def _reaching(flat: Array, floor: Array | int, most: int) -> Selected:
    """The same as `selection.largest`, in one pass if no more than `most` are found."""
    if flat.size <= _SHORT:
        return selection.largest(flat, most, floor)
    floor = jnp.asarray(floor, magnitude_bits(flat).dtype)
    return largest_of(flat, reach(flat, floor), floor, most, most)


def reach(flat: Array, floor: Array) -> Array:
    """Bitmap of the elements whose magnitude bits are at least `floor`."""
    flat, floor = jax.lax.optimization_barrier((flat, floor))
    return indices.to_words(magnitude_bits(flat) >= floor)


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
    passed = indices.count(words)
    too_many = passed > np.uint32(most)

    def the_largest() -> Array:
        places = selection.largest(flat, wanted, floor).places
        return jnp.pad(places, (0, most - wanted), constant_values=flat.size)

    def all_of_them() -> Array:
        return indices.places(words, most, absent=flat.size)

    places = jax.lax.cond(too_many, the_largest, all_of_them)
    return Selected(places, jnp.where(too_many, np.uint32(wanted), passed), passed)


def overflow_figure(capacity: Callable[[int], int]) -> Figure:
    """The figure that says how many elements reached the threshold and were not sent.

    Args:
      capacity: size of a tensor -> number of its elements in a payload.
    """

    def of(payload: Any, spec: Spec) -> Array:
        if not isinstance(spec, tuple):
            most = np.uint32(capacity(spec.size))
            return (jnp.maximum(payload.passed, most) - most).astype(jnp.float32)
        limits = np.array([capacity(one.size) for one in spec], np.uint32)
        beyond = jnp.maximum(payload.passed, limits) - limits
        return jnp.sum(beyond.astype(jnp.float32))

    return Figure("overflow", of)

"""Functions and types that all sparsifiers share. This file is not a method.

A sparsifier chooses the places of some elements and calls `send`, which makes the
payload of values and places. `sparsifier` builds the `Compressor` around that.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Compressor, Figure, Payload, Spec, State
from jaxcomp.coding import indices
from jaxcomp.coding.payloads import Sparse
from jaxcomp.compressors import _segmented
from jaxcomp.compressors._compiled import compressor
from jaxcomp.segments import Segments
from jaxcomp.specs import Range

__all__ = [
    "Keep",
    "add_at",
    "clear_at",
    "kept",
    "send",
    "send_rows",
    "sparsifier",
    "subset_bits",
    "value_bits",
    "with_segments",
]

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

"""Builds the form of a method that compresses many arrays at once, as segments.

This file is not a method. docs/architecture.md says why this form exists.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Figure, Payload, Spec, State
from jaxcomp.compressors._compiled import with_spec
from jaxcomp.compressors._places import add_at, clear_at
from jaxcomp.contracts import Accumulate
from jaxcomp.segments import Segments, cut, from_rows, segments_of, to_rows
from jaxcomp.trees import spec_of, vary_like, wide_spec

__all__ = ["of_rows", "of_vector"]


def of_rows(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    decompress: Callable[[Payload, Segments, Any], Array],
    width: int | None = None,
) -> Compressor:
    """A method whose payload has every element, for a tuple of arrays of one dtype.

    Args:
      one: the same method for one array. It has no state.
      compress: (rows, segments, keys) -> payload; a key for each tensor.
      decompress: (payload, segments, dtype) -> rows, in any float type; they are cast
        to this dtype.
      width: of the rows; None leaves it to `segments_of`.
    """

    def add(total: Array, payload: Payload, segments: Segments) -> Array:
        return total + decode(payload, segments, total.dtype)

    def accumulate(total: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        added = made.decompress(payload, spec_of(tuple(total)))
        return tuple(map(jnp.add, total, added))

    def zeros(segments: Segments, dtype: Any) -> Array:
        return jnp.zeros((segments.rows, segments.width), dtype)

    def decode(payload: Payload, segments: Segments, dtype: Any) -> Array:
        return decompress(payload, segments, dtype).astype(dtype)

    def whole(payload: Payload, segments: Segments) -> Payload:
        return payload

    forms = decode, whole, add, zeros, from_rows
    made = _of(one, compress, accumulate, *forms, width)
    return made


def of_vector(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    read: Callable[[Payload, int], tuple[Array, Array]],
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A method that sends some elements, for a tuple of arrays of one dtype.

    Args:
      one: the same method for one array. It has no state.
      compress: (rows, segments, keys) -> payload; a key for each tensor.
      read: (payload, size) -> places and values of what was sent, in the vector of
        this size that joins all arrays without padding. Places ascend; those beyond
        the end are left out.
      figures: as in `Compressor`; their spec is the tuple of specs.
    """

    def found(payload: Payload, segments: Segments) -> tuple[Array, Array]:
        return read(payload, sum(segments.sizes))

    def add_ascending(total: Array, places: Array, values: Array) -> Array:
        return add_at(total, places, values, indices_are_sorted=True)

    def add(total: Array, found: tuple[Array, Array], segments: Segments) -> Array:
        return add_ascending(total, *found)

    def zeros(segments: Segments, dtype: Any) -> Array:
        return jnp.zeros(sum(segments.sizes), dtype)

    def decode(payload: Payload, segments: Segments, dtype: Any) -> Array:
        return add(zeros(segments, dtype), found(payload, segments), segments)

    def parted(flat: Array, segments: Segments) -> tuple[Array, ...]:
        return cut(flat, segments.sizes)

    def in_rows(
        arrays: Sequence[Array],
        payload: Payload,
        change: Callable[[Array, Array, Array], Array],
    ) -> tuple[Array, ...]:
        """Arrays changed at the places of a payload; in the rows of `compress`."""
        segments = segments_of([x.size for x in arrays])
        places, values = found(payload, segments)
        rows = to_rows(arrays, segments)
        flat = change(rows.reshape(-1), segments.in_rows(places), values)
        changed = from_rows(flat.reshape(rows.shape), segments)
        pairs = zip(changed, arrays, strict=True)
        return tuple(part.reshape(x.shape) for part, x in pairs)

    def accumulate(total: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        return in_rows(total, payload, add_ascending)

    def clear(arrays: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        return in_rows(arrays, payload, clear_at)

    made = _of(one, compress, accumulate, decode, found, add, zeros, parted)
    return made._replace(figures=figures, clear=clear)


def _of(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    accumulate: Accumulate,
    decode: Callable[[Payload, Segments, Any], Array],
    read: Callable[[Payload, Segments], Any],
    add: Callable[[Array, Any, Segments], Array],
    zeros: Callable[[Segments, Any], Array],
    parted: Callable[[Array, Segments], tuple[Array, ...]],
    width: int | None = None,
) -> Compressor:
    """A compressor of tuples.

    `read` makes of a payload what `add` adds to a sum: something small, because that of
    all payloads is held at once.
    """

    def layout(arrays: Any) -> Segments:
        return segments_of([x.size for x in arrays], width)

    def shaped(flat: Array, segments: Segments, specs: Spec) -> tuple[Array, ...]:
        pairs = zip(parted(flat, segments), specs, strict=True)
        return tuple(x.reshape(s.shape) for x, s in pairs)

    def compress_all(
        arrays: Sequence[Array], state: State, keys: Array
    ) -> tuple[Payload, State]:
        segments = layout(arrays)
        return compress(to_rows(arrays, segments), segments, keys), state

    def decompress(payload: Payload, specs: Spec) -> tuple[Array, ...]:
        segments = layout(specs)
        return shaped(decode(payload, segments, specs[0].dtype), segments, specs)

    def decompress_sum(payloads: Payload, specs: Spec) -> tuple[Array, ...]:
        segments, wide = layout(specs), wide_spec(specs)
        contents = jax.vmap(lambda payload: read(payload, segments))(payloads)

        # One after the other, for the reason given in `_compiled.py`.
        def body(i: Array, total: Array) -> Array:
            return add(total, jax.tree.map(lambda leaf: leaf[i], contents), segments)

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(zeros(segments, wide[0].dtype), payloads)
        return shaped(jax.lax.fori_loop(0, count, body, start), segments, wide)

    return one._replace(
        init=lambda specs: tuple(one.init(spec) for spec in specs),
        compress=jax.jit(compress_all),
        decompress=with_spec(decompress),
        accumulate=accumulate,
        decompress_sum=with_spec(decompress_sum),
        ideal_bits=lambda specs: sum((one.ideal_bits(s) for s in specs), 0.0),
        contraction=lambda specs: _least([one.contraction(s) for s in specs]),
        support=lambda specs: sum(map(one.support, specs)),
        segmented=None,
    )


def _least(deltas: list[float | None]) -> float | None:
    known = [delta for delta in deltas if delta is not None]
    return min(known) if len(known) == len(deltas) else None

"""The sampled thresholds of `dgc_top_k`, for many tensors at once.

This file is not a method. Each number here is the one that the method finds for a
tensor by itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array
from jaxcomp.magnitudes import magnitude_bits
from jaxcomp.segment_selection import kth_largest_of_each, reached_by_each
from jaxcomp.segments import Segments
from jaxcomp.trees import vary_like

__all__ = [
    "Limits",
    "Thresholds",
    "adapted_of_each",
    "floors_of",
    "sampled_of_each",
]

_WIDTH = 64  # of the rows of samples


class Limits(NamedTuple):
    """For each tensor, when its threshold is right."""

    fewest: Sequence[int]  # 0 where any number is right
    most: Sequence[int]
    lower: float  # factor on a threshold that fewer than `fewest` elements reach
    upper: float | None  # and on one that more than `most` reach; None: that is right
    rounds: int


class Thresholds(NamedTuple):
    """The state of the search."""

    values: Array  # [tensors] magnitudes
    passed: Array  # [tensors] uint32: how many elements reach them
    moves: Array  # []


def sampled_of_each(
    rows: Array,
    segments: Segments,
    keys: Array,
    strides: Sequence[int],
    tops: Sequence[int],
    strided: bool,
) -> Array:
    """For each tensor the smallest of its `top` largest samples.

    Args:
      rows: [rows, width] of the tensors.
      segments: of the rows.
      keys: of the tensors.
      strides: of the samples; the result has no meaning where the stride is 1.
      tops: of the samples.
      strided: whether samples have a fixed distance, or random places.
    """
    counts = tuple(
        1 if stride == 1 else size // stride + strided
        for size, stride in zip(segments.sizes, strides, strict=True)
    )
    chosen = Segments(counts, _WIDTH)
    seeds = jax.vmap(noise.seed_of)(keys)
    number, sizes = chosen.places_in_tensor, np.array(segments.sizes, np.uint32)
    if strided:
        start = noise.high_product(seeds[:, 0], jnp.array(strides, jnp.uint32))
        distance = chosen.spread(np.array(strides, np.uint32))
        places = chosen.spread(start) + number * distance
    else:
        words = noise.words_at(number, *(chosen.spread(seeds[:, i]) for i in range(2)))
        limits = jnp.broadcast_to(chosen.spread(sizes), words.shape)
        places = noise.high_product(words, limits)
    is_sample = number < chosen.spread(np.array(counts, np.uint32))
    is_sample &= places < chosen.spread(sizes)
    first = chosen.spread(segments.starts * np.uint32(segments.width))
    places = jnp.where(is_sample, first + places, np.uint32(rows.size))
    samples = rows.reshape(-1).at[places].get(mode="fill", fill_value=0)
    ranks = jnp.array(tops, jnp.uint32)
    found = kth_largest_of_each(magnitude_bits(samples), ranks, chosen)
    return jax.lax.bitcast_convert_type(found, rows.dtype)


def adapted_of_each(
    rows: Array, segments: Segments, start: Array, limits: Limits
) -> Thresholds:
    """Thresholds after all changes; those that are right do not change."""
    fewest, most = (
        np.array(counts, np.uint32) for counts in (limits.fewest, limits.most)
    )
    largest = jnp.finfo(start.dtype).max

    def search(values: Array, moves: Array) -> Thresholds:
        bits = floors_of(values)
        counted = reached_by_each(rows, segments, jnp.maximum(bits, 1))
        # Every element reaches zero, and padding does too.
        sizes = np.array(segments.sizes, np.uint32)
        return Thresholds(values, jnp.where(bits == 0, sizes, counted), moves)

    def is_wrong(s: Thresholds) -> Array:
        too_few = s.passed < fewest
        return too_few if limits.upper is None else too_few | (s.passed > most)

    def searching(s: Thresholds) -> Array:
        return jnp.any(is_wrong(s)) & (s.moves < limits.rounds)

    def step(s: Thresholds) -> Thresholds:
        raised = limits.lower if limits.upper is None else limits.upper
        factor = jnp.where(s.passed < fewest, limits.lower, raised)
        moved = jnp.minimum(s.values * factor.astype(start.dtype), largest)
        return search(jnp.where(is_wrong(s), moved, s.values), s.moves + 1)

    first = vary_like(search(start, jnp.int32(0)), rows)
    return jax.lax.while_loop(searching, step, first)


def floors_of(thresholds: Array) -> Array:
    """Magnitude bits of thresholds; a NaN is taken for infinity, which NaN reaches."""
    infinity = magnitude_bits(jnp.array(jnp.inf, thresholds.dtype))
    return jnp.minimum(magnitude_bits(thresholds), infinity)

"""The figures of steps stay on the devices until a look, which copies one array.

A copy of each figure of each step would make the host wait for the devices, and on a
GPU each costs as much as several small kernels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.base import Array, Tree
from jaxcomp.training.step import StepMetrics

__all__ = ["Recorder", "make_recorder"]


class Recorder(NamedTuple):
    """Keeps the figures of the last steps on the devices."""

    start: Callable[[], Array]  # rows without figures, [workers, steps, words]
    # (rows, figures of a step) -> rows in which that step is the last one
    record: Callable[[Array, StepMetrics], Array]
    # (rows, count) -> the last so many steps of this process's workers, NumPy arrays
    read: Callable[[Array, int], list[StepMetrics]]


def make_recorder(
    workers: parallel.Workers, metrics: StepMetrics, steps: int
) -> Recorder:
    """Make a recorder of the figures of steps; compiles its one program.

    Args:
      workers: of the run.
      metrics: shapes and dtypes of a step's figures, with the axis of workers.
      steps: the most that lie between two looks.
    """
    local = workers.local.stop - workers.local.start
    leaves, structure = jax.tree.flatten(metrics)
    own = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    lengths = [_word_count(leaf) for leaf in own]

    def start() -> Array:
        rows = np.zeros((local, steps, sum(lengths)), np.uint32)
        return parallel.place(rows, workers, 0)

    def append(rows: Array, metrics: StepMetrics) -> Array:
        row = jnp.concatenate([_words(leaf) for leaf in jax.tree.leaves(metrics)])
        return jnp.concatenate([rows[1:], row[None]])

    mapped = parallel.map_step(
        append, workers, in_axes=(0, 0), out_axes=0, donate_argnums=(0,)
    )
    empty = [np.zeros((local, *leaf.shape), leaf.dtype) for leaf in own]
    placed = parallel.place(jax.tree.unflatten(structure, empty), workers, 0)
    compiled = mapped.lower(start(), placed).compile()

    def read(rows: Array, count: int) -> list[StepMetrics]:
        words = parallel.to_host(rows)[:, steps - count :]
        parts = np.split(words, np.cumsum(lengths)[:-1], axis=-1)
        values = [_values(part, leaf) for part, leaf in zip(parts, own, strict=True)]
        return [
            jax.tree.unflatten(structure, [value[:, step] for value in values])
            for step in range(count)
        ]

    return Recorder(start, compiled, read)


def _words(x: Array) -> Array:
    """The bits of an array as uint32, [words]; a small element takes a whole word."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32).reshape(-1)
    bits = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, bits).astype(jnp.uint32).reshape(-1)


def _word_count(spec: Any) -> int:
    return math.prod(spec.shape) * max(1, np.dtype(spec.dtype).itemsize // 4)


def _values(words: np.ndarray, spec: Any) -> Tree:
    """The inverse of `_words`, for the last axis of [workers, steps, words]."""
    dtype = np.dtype(spec.dtype)
    narrow = {1: np.uint8, 2: np.uint16}.get(dtype.itemsize, np.uint32)
    bits = np.ascontiguousarray(words.astype(narrow))
    return bits.view(dtype).reshape(*words.shape[:2], *spec.shape)

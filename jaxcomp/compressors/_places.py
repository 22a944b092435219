"""Vectors that change at a few places. This file is not a method."""

from typing import Any

import jax.numpy as jnp

from jaxcomp.base import Array

__all__ = ["add_at", "clear_at"]


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

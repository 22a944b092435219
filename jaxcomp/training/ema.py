"""Exponential moving averages of the parameters, beside those that are trained."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Tree
from jaxcomp.specs import Range

__all__ = ["Decay", "first_average", "moved"]

Decay = Range(least=0, below=1)


def first_average(params: Tree, decay: float) -> Any:
    """The average before the first step: the parameters; () where there is none."""
    return jax.tree.map(jnp.copy, params) if decay else ()


def moved(average: Tree, params: Tree, decay: float, step: Array) -> Tree:
    """d average + (1 - d) params, with d = min(decay, (1 + step) / (10 + step)).

    The first averages would else be little more than the parameters at the start.

    Args:
      average: after the steps before this one.
      params: after this step.
      decay: of the average; 0 leaves () as it is.
      step: number of the step, from 0.

    Example:
      >>> moved(jnp.zeros(1), jnp.ones(1), 0.5, jnp.int32(100))
      Array([0.5], dtype=float32)
      >>> moved(jnp.zeros(1), jnp.ones(1), 0.5, jnp.int32(0))
      Array([0.9], dtype=float32)
    """
    if not decay:
        return average
    count = step.astype(jnp.float32)
    share = jnp.minimum(decay, (1 + count) / (10 + count))

    def of(old: Array, new: Array) -> Array:
        kept = share.astype(old.dtype)
        return kept * old + (1 - kept) * new

    return jax.tree.map(of, average, params)

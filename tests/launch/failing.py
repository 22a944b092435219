"""A task whose last worker alone has a loss that is not finite."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.training.tasks import Task
from jaxcomp.training.tasks.classification import classification

__all__ = ["make"]


def make(config: Any, workers: Any) -> Task:
    """The classification of a config, with a NaN on the last worker."""
    task = classification(config, workers)

    def loss(*args: Any) -> Any:
        value, learnt = task.loss(*args)
        is_last = jax.lax.axis_index(workers.axis) == workers.size - 1
        return jnp.where(is_last, jnp.nan, 1.0) * value, learnt

    return task._replace(loss=loss)

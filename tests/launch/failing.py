"""Tasks that end a run of several processes: by a NaN of one, and by its own end."""

import sys
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.training.tasks import Task
from jaxcomp.training.tasks.classification import classification


def diverging(config: Any, workers: Any) -> Task:
    """The classification of a config, with a NaN on the last worker."""
    task = classification(config, workers)

    def loss(*args: Any) -> Any:
        value, learnt = task.loss(*args)
        is_last = jax.lax.axis_index(workers.axis) == workers.size - 1
        return jnp.where(is_last, jnp.nan, 1.0) * value, learnt

    return task._replace(loss=loss)


def leaving(config: Any, workers: Any) -> Task:
    """The classification of a config, whose second process ends in the third epoch."""
    task = classification(config, workers)

    def shares(epoch: int) -> Any:
        if epoch == 2 and jax.process_index() == 1:
            sys.exit(3)
        return task.shares(epoch)

    return task._replace(shares=shares)

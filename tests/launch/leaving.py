"""A task that ends one process of a run, as `sys.exit` in a program of one's own."""

import sys
from typing import Any

import jax

from jaxcomp.training.tasks import Task
from jaxcomp.training.tasks.classification import classification

__all__ = ["make"]


def make(config: Any, workers: Any) -> Task:
    """The classification of a config, whose second process ends in the third epoch."""
    task = classification(config, workers)

    def shares(epoch: int) -> Any:
        if epoch == 2 and jax.process_index() == 1:
            sys.exit(3)
        return task.shares(epoch)

    return task._replace(shares=shares)

"""Batches for this process's workers, in an order that follows from seed and step."""

from collections.abc import Iterator

import numpy as np

from jaxcomp import data
from jaxcomp.tasks import Batch, Task

__all__ = ["eval_feed", "train_feed"]


def train_feed(task: Task, *, local: slice, start: int) -> Iterator[Batch]:
    """The batches of step `start`, `start + 1`, ... without end.

    A resumed run sees exactly what the first would have seen.

    Args:
      task: its data, in memory; as many steps in every epoch.
      local: the workers of this process.
      start: number of the first step.
    """
    epoch, first = divmod(start, len(task.shares(0)))
    while True:
        for chosen in task.shares(epoch)[first:, local]:
            yield tuple(array[chosen] for array in task.train)
        epoch, first = epoch + 1, 0


def eval_feed(
    task: Task, *, batch_size: int, workers: int, local: slice
) -> Iterator[tuple[Batch, np.ndarray]]:
    """The test set once, with weights; the padding of the last batch weighs 0."""
    indices, weights = data.eval_batches(
        len(task.test[0]), batch=batch_size, workers=workers
    )
    for chosen, weight in zip(indices[:, local], weights[:, local], strict=True):
        yield tuple(array[chosen] for array in task.test), weight

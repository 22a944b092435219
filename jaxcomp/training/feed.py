"""Batches for this process's workers, in an order that follows from seed and step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from jaxcomp import data

__all__ = ["Deal", "EvalBatch", "eval_feed", "train_feed"]

# epoch -> indices [steps, workers, examples of a step]; depends on the epoch alone
Deal: TypeAlias = Callable[[int], np.ndarray]


class EvalBatch(NamedTuple):
    """One evaluation batch, [local workers, examples, ...]."""

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def train_feed(
    dataset: data.Dataset, deal: Deal, *, local: slice, start: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(images, labels) of step `start`, `start + 1`, ... without end.

    A resumed run sees exactly what the first would have seen.

    Args:
      dataset: in memory.
      deal: the batches of an epoch; as many in every epoch.
      local: the workers of this process.
      start: number of the first step.
    """
    epoch, first = divmod(start, len(deal(0)))
    while True:
        for chosen in deal(epoch)[first:, local]:
            yield dataset.train_images[chosen], dataset.train_labels[chosen]
        epoch, first = epoch + 1, 0


def eval_feed(
    dataset: data.Dataset, *, batch_size: int, workers: int, local: slice
) -> Iterator[EvalBatch]:
    """The test set once; the padding of the last batch weighs 0."""
    indices, weights = data.eval_batches(
        len(dataset.test_labels), batch=batch_size, workers=workers
    )
    for chosen, weight in zip(indices[:, local], weights[:, local], strict=True):
        images, labels = dataset.test_images[chosen], dataset.test_labels[chosen]
        yield EvalBatch(images, labels, weight)

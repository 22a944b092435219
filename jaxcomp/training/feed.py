"""Batches for this process's workers, in an order that follows from seed and step."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxcomp import data

__all__ = ["EvalBatch", "eval_feed", "train_feed"]


class EvalBatch(NamedTuple):
    """One evaluation batch, [local workers, examples, ...]."""

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def train_feed(
    dataset: data.Dataset,
    *,
    seed: int,
    batch_size: int,
    workers: int,
    local: slice,
    start: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(images, labels) of step `start`, `start + 1`, ... without end.

    A resumed run sees exactly what the first would have seen: an epoch's order depends
    on (seed, epoch) alone.
    """
    count = len(dataset.train_labels)
    per_epoch = count // batch_size
    epoch, first = divmod(start, per_epoch)
    while True:
        order = data.epoch_order(count, seed=seed, epoch=epoch)
        steps = data.batches(order, global_batch=batch_size, workers=workers)
        for chosen in steps[first:, local]:
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

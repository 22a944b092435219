"""Batches for this process's workers, in an order that follows from seed and step."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxcomp import data
from jaxcomp.tasks import Batch, Task

__all__ = ["eval_feed", "train_feed"]

# Batches that are taken ahead, where taking one means decoding or reading from disk.
AHEAD = 2


def train_feed(task: Task, *, local: slice, start: int) -> Generator[Batch, None, None]:
    """The batches of step `start`, `start + 1`, ... without end.

    A resumed run sees exactly what the first would have seen.

    Args:
      task: its data; as many steps in every epoch.
      local: the workers of this process.
      start: number of the first step.
    """

    def places() -> Iterator[tuple[int, np.ndarray]]:
        epoch, first = divmod(start, len(task.shares(0)))
        while True:
            for chosen in task.shares(epoch)[first:, local]:
                yield epoch, chosen
            epoch, first = epoch + 1, 0

    def load(place: tuple[int, np.ndarray]) -> Batch:
        epoch, chosen = place
        return data.take(task.train, chosen, epoch)

    return _loaded(load, places(), _ahead(task.train))


def eval_feed(
    task: Task, *, batch_size: int, workers: int, local: slice
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """The test set once, with weights; the padding of a last batch weighs 0.

    Each batch has examples of one shape.
    """

    def places() -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        for part in data.parts_of(task.test):
            indices, weights = data.eval_batches(
                len(part[0]), batch=batch_size, workers=workers
            )
            for step in zip(indices[:, local], weights[:, local], strict=True):
                yield part, *step

    def load(place: tuple[Batch, np.ndarray, np.ndarray]) -> tuple[Batch, np.ndarray]:
        part, chosen, weight = place
        return tuple(array[chosen] for array in part), weight

    return _loaded(load, places(), _ahead(task.test))


def _ahead(arrays: tuple[Any, ...]) -> int:
    """How many batches are worth taking before they are asked for."""
    slow = any(
        isinstance(array, data.Pictures | data.Rectangles | np.memmap)
        for array in arrays
    )
    return AHEAD if slow else 0


def _loaded(
    load: Callable[[Any], Any], places: Iterator[Any], ahead: int
) -> Generator[Any, None, None]:
    """What `load` makes of each place in their order, `ahead` of them in advance."""
    if not ahead:
        yield from map(load, places)
        return
    with ThreadPoolExecutor(1, "feed") as thread:
        waiting: deque[Any] = deque()
        try:
            for place in places:
                waiting.append(thread.submit(load, place))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

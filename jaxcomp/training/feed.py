"""Which batch a step takes, and how it comes onto the devices."""

import functools
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxcomp import data, parallel
from jaxcomp.training.plan import RunPlan
from jaxcomp.training.segments import batches_from
from jaxcomp.training.tasks import Batch, Task

# Bytes of a training set that each device holds as a whole.
RESIDENT_LIMIT = 2**30


def loaded(
    feed: Callable[[Task], Iterator[Batch]], task: Task, workers: parallel.Workers
) -> Iterator[Batch]:
    """The batches of a feed on the devices of the workers.

    Args:
      feed: of a task's training set, such as `train_feed` with its step.
      task: of the run.
      workers: of the run.
    """
    if not stays_on_device(task.train, workers):
        return (parallel.place(batch, workers, 0) for batch in feed(task))
    whole = parallel.place(tuple(task.train), workers, None)
    pick = parallel.map_step(
        lambda whole, places: tuple(array[places] for array in whole),
        workers,
        in_axes=(None, 0),
        out_axes=0,
    )
    # The feed of the places themselves, which have the order of the examples.
    places = task._replace(train=(np.arange(len(task.train[0]), dtype=np.int32),))
    return (pick(whole, *parallel.place(batch, workers, 0)) for batch in feed(places))


def run_feed(plan: RunPlan, start: int) -> Iterator[Batch]:
    """The batches of a run from a step on, on the devices, without end."""
    workers = plan.workers

    def batches(task: Task, first: int) -> Iterator[Batch]:
        feed = functools.partial(train_feed, local=workers.local, start=first)
        return loaded(feed, task, workers)

    return batches_from(start, plan.segments, batches)


def stays_on_device(arrays: tuple[Any, ...], workers: parallel.Workers) -> bool:
    """Whether each device of the workers holds all of a training set.

    Args:
      arrays: the training set.
      workers: of the run.
    """
    on_host = any(isinstance(a, data.Pictures | np.memmap) for a in arrays)
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays)
    device = jax.devices()[0] if workers.mesh is None else workers.mesh.devices.flat[0]
    return not on_host and size <= RESIDENT_LIMIT and device.platform != "cpu"


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
    """The test set once, with weights; the padding of a last batch weighs 0."""
    indices, weights = data.eval_batches(
        len(task.test[0]), batch=batch_size, workers=workers
    )

    def load(place: tuple[np.ndarray, np.ndarray]) -> tuple[Batch, np.ndarray]:
        chosen, weight = place
        return tuple(array[chosen] for array in task.test), weight

    places = zip(indices[:, local], weights[:, local], strict=True)
    return _loaded(load, places, _ahead(task.test))


def _ahead(arrays: tuple[Any, ...]) -> int:
    """How many batches are worth taking before they are asked for."""
    slow = any(isinstance(array, data.Pictures | np.memmap) for array in arrays)
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

"""Batches on the devices: sent there step by step, or taken from data that stays there.

An accelerator holds a small data set as it is stored, as uint8, and is sent the places
of a batch only. On a CPU the memory of the devices is that of the host, so a copy of
the data for each of them would gain nothing.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxcomp import data, parallel
from jaxcomp.tasks import Batch, Task

__all__ = ["loaded", "stays_on_device"]

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

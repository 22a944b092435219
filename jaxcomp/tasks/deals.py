"""Who sees which example of labelled data at which step, as a config says."""

from typing import Any

import numpy as np

from jaxcomp import data
from jaxcomp.specs import Call, SpecError, parse, suggest
from jaxcomp.tasks.task import Deal

__all__ = ["deal_of", "named_call"]


def deal_of(config: Any, labels: np.ndarray, workers: int) -> Deal:
    """The batches of an epoch.

    Args:
      config: its partition, batch_size and seed.
      labels: of all training examples.
      workers: their number.

    Example:
        >>> from ml_collections import ConfigDict
        >>> config = ConfigDict({"partition": "sorted", "batch_size": 4, "seed": 0})
        >>> deal_of(config, np.array([1, 0, 1, 0]), workers=2)(0).shape
        (1, 2, 2)
    """
    batch = config.batch_size
    call = named_call(config.partition, "partition")
    if call.name == "dealt" and not call.kwargs:

        def dealt(epoch: int) -> np.ndarray:
            order = data.epoch_order(len(labels), seed=config.seed, epoch=epoch)
            return data.batches(order, global_batch=batch, workers=workers)

        return dealt
    if call.name not in data.PARTITIONS:
        hint = suggest(call.name, ["dealt", *data.PARTITIONS])
        raise SpecError(f"unknown partition {call.name!r}. {hint}")
    divided = data.make_partition(
        call.name, labels, workers=workers, seed=config.seed, **call.kwargs
    )
    return lambda epoch: data.worker_batches(divided, epoch=epoch, global_batch=batch)


def named_call(spec: str, kind: str) -> Call:
    """A spec whose arguments all have names.

    Example:
        >>> named_call("digits(size=8)", "dataset").kwargs
        {'size': 8}
    """
    call = parse(spec)
    if not isinstance(call, Call) or call.args:
        raise SpecError(f"a {kind} is a name with named arguments, not {spec!r}")
    return call

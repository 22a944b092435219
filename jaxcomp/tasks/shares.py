"""Which examples of labelled data each worker sees in an epoch, as a config says."""

from typing import Any

import numpy as np

from jaxcomp import data
from jaxcomp.specs import build, publish
from jaxcomp.tasks.named import named_call
from jaxcomp.tasks.task import Shares

__all__ = ["shares_of"]

publish(partition=data.PARTITIONS)


def shares_of(config: Any, labels: np.ndarray, workers: int) -> Shares:
    """Make a function from an epoch to the examples of each worker and step.

    Args:
      config: its partition, batch_size, seed and devices_per_node.
      labels: of all training examples.
      workers: their number.

    Example:
      >>> from ml_collections import ConfigDict
      >>> config = ConfigDict({"partition": "sorted", "batch_size": 4, "seed": 0})
      >>> shares_of(config, np.array([1, 0, 1, 0]), workers=2)(0).shape
      (1, 2, 2)
    """
    batch, seed = config.batch_size, config.seed
    nodes = workers // config.get("devices_per_node", 1)

    def dealt(labels: np.ndarray, workers: int, seed: int) -> None:
        """No partition: each batch of one common order is divided."""

    known = {"dealt": dealt, **data.PARTITIONS}
    call = named_call(config.partition, "partition")
    divided = build(call, known, "partition", labels, nodes, seed)

    def of_epoch(epoch: int) -> np.ndarray:
        if divided is not None:
            found = data.worker_batches(divided, epoch=epoch, global_batch=batch)
            # The devices of a node divide each of its batches.
            return found.reshape(len(found), workers, -1)
        order = data.epoch_order(len(labels), seed=seed, epoch=epoch)
        return data.batches(order, global_batch=batch, workers=workers)

    return of_epoch

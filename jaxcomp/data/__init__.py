"""Data sets in memory, augmentation on the device, and partition over workers.

Example:
  >>> load("digits").train_images.shape
  (1437, 16, 16, 1)
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from jaxcomp.errors import UserError
from jaxcomp.specs import suggest

from . import digits, sources, tfds_source
from .augment import augment, normalize, pad_crop_flip
from .batches import batches, epoch_order, eval_batches, worker_batches
from .dataset import DataError, Dataset
from .partition import PARTITIONS, Partition, make_partition

__all__ = [
    "PARTITIONS",
    "REGISTRY",
    "DataError",
    "Dataset",
    "Partition",
    "augment",
    "batches",
    "epoch_order",
    "eval_batches",
    "load",
    "make_partition",
    "normalize",
    "pad_crop_flip",
    "worker_batches",
]

REGISTRY: dict[str, Callable[..., Dataset]] = {
    "digits": digits.load,
    "cifar10": functools.partial(tfds_source.load, sources.CIFAR10),
    "cifar100": functools.partial(tfds_source.load, sources.CIFAR100),
    "mnist": functools.partial(tfds_source.load, sources.MNIST),
    "fashion_mnist": functools.partial(tfds_source.load, sources.FASHION_MNIST),
}


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, **kw: Any
) -> Dataset:
    """Load a data set into memory by name.

    Args:
      name: a key of `REGISTRY`.
      data_dir: where prepared data lies; else the environment variable
        JAXCOMP_DATA_DIR, else ~/.cache/jaxcomp.
      **kw: options of the loader, such as `size` of digits.

    Returns:
      The data set, images as uint8.

    Raises:
      UserError: there is no such data set.
      DataError: it is not prepared yet; the message gives the command.

    Example:
      >>> load("digits", size=8).test_images.shape
      (360, 8, 8, 1)
    """
    if name not in REGISTRY:
        raise UserError(f"unknown data set {name!r}. {suggest(name, REGISTRY)}")
    return REGISTRY[name](data_dir=data_dir, **kw)

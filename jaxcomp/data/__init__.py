"""Data sets, augmentation on the device, and who sees which example when.

Example:
  >>> load("digits").train_images.shape
  (1437, 16, 16, 1)
"""

import functools
from collections.abc import Callable
from typing import Any

from jaxcomp.core.specs import Call, build, parse
from jaxcomp.data.augmentations import REGISTRY as AUGMENTATIONS
from jaxcomp.data.augmentations import Augmentation, make_augment, normalize
from jaxcomp.data.dataset import DataError, Dataset
from jaxcomp.data.digits import digits
from jaxcomp.data.imagenet import DOWNSAMPLED, imagenet
from jaxcomp.data.imagenet import load as load_downsampled
from jaxcomp.data.partition import (
    PARTITIONS,
    Partition,
    batches,
    epoch_order,
    eval_batches,
    make_partition,
    worker_batches,
)
from jaxcomp.data.pictures import (
    Pictures,
    class_folders,
    of_side,
    take,
)
from jaxcomp.data.prepare import DataDir
from jaxcomp.data.sources import SOURCES
from jaxcomp.data.sources import load as load_prepared
from jaxcomp.data.tfds_any import tfds
from jaxcomp.data.views import VIEWS, Views, make_views

__all__ = [
    "AUGMENTATIONS",
    "PARTITIONS",
    "REGISTRY",
    "VIEWS",
    "Augmentation",
    "DataError",
    "Dataset",
    "Partition",
    "Pictures",
    "Views",
    "batches",
    "epoch_order",
    "eval_batches",
    "load",
    "make_augment",
    "make_partition",
    "make_views",
    "normalize",
    "of_side",
    "take",
    "worker_batches",
]

REGISTRY: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    **{name: functools.partial(load_prepared, it) for name, it in SOURCES.items()},
    **{n: functools.partial(load_downsampled, it) for n, it in DOWNSAMPLED.items()},
    "imagenet": imagenet,
    "class_folders": class_folders,
    "tfds": tfds,
}


def load(spec: str, *, data_dir: DataDir = None, **options: Any) -> Dataset:
    """Load a data set, as a spec string says.

    Args:
      spec: a name in `REGISTRY`, with or without arguments.
      data_dir: where prepared data lies; else the environment variable
        JAXCOMP_DATA_DIR, else ~/.cache/jaxcomp.
      **options: further arguments of the spec, such as `size` of digits.

    Returns:
      The data set, images as uint8.

    Raises:
      UserError: there is no such data set, or it has no such argument.
      DataError: it is not prepared yet; the message gives the command.

    Example:
      >>> load("digits(size=8)").test_images.shape
      (360, 8, 8, 1)
    """
    call = parse(spec)
    if isinstance(call, Call):
        call = call._replace(kwargs={**call.kwargs, **options})
    return build(call, REGISTRY, "data set", data_dir)

"""The types of a loaded data set, and the error for data that cannot be used."""

from typing import Any, NamedTuple

import numpy as np

from jaxcomp.errors import UserError


class DataError(UserError):
    """Data that is missing, damaged or different from what was expected."""

    exit_code = 1


class Dataset(NamedTuple):
    """A data set: images, labels and statistics.

    Images are arrays in memory, arrays that stay on disk (`np.memmap`), or `Pictures`,
    which are decoded when they are indexed.
    """

    name: str
    train_images: Any  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: Any  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]
    num_classes: int
    mean: tuple[float, ...]  # per channel, images scaled to 0..1
    std: tuple[float, ...]  # per channel, images scaled to 0..1


class Splits(NamedTuple):
    """The arrays of a data set, without its name and statistics."""

    train_images: np.ndarray  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: np.ndarray  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]

"""What a loaded data set is, and the error for data that cannot be used."""

from typing import NamedTuple

import numpy as np

from jaxcomp.errors import UserError


class DataError(UserError):
    """Data that is missing, damaged or not what it claims to be."""

    exit_code = 1


class Dataset(NamedTuple):
    """One data set in memory: images as stored, labels, and its statistics."""

    name: str
    train_images: np.ndarray  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: np.ndarray  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]
    num_classes: int
    mean: tuple[float, ...]  # per channel, images scaled to 0..1
    std: tuple[float, ...]  # per channel, images scaled to 0..1


class Splits(NamedTuple):
    """The arrays of a data set, before names and statistics are added."""

    train_images: np.ndarray  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: np.ndarray  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]

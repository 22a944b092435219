"""A data set in memory, and what is wrong with one."""

from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.errors import UserError

# Mean and standard deviation of each channel, of pixels from 0 to 1.
IMAGENET_COLOURS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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


def about(source: Any) -> str:
    """What a published set of images holds, in one line."""
    (height, width, _), (train, test) = source.shape, source.counts
    return (
        f"{train} images of {height}x{width} in {source.num_classes} classes, {test} "
        "for the test."
    )

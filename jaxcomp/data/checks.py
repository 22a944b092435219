"""Check the arrays of a data set against what is known of it."""

from pathlib import Path

import numpy as np

from .dataset import DataError, Splits
from .sources import Source

__all__ = ["check"]


def check(splits: Splits, source: Source, archive: Path) -> None:
    """Refuse arrays with wrong counts, image shape, labels or class balance.

    Args:
      splits: arrays as read.
      source: of which data set.
      archive: from which they were read, for the message.

    Raises:
      DataError: names the archive, what was found and what was expected.
    """
    train_count, test_count = source.counts
    halves = {
        "training": (splits.train_images, splits.train_labels, train_count),
        "test": (splits.test_images, splits.test_labels, test_count),
    }
    for half, (images, labels, count) in halves.items():
        where = f"{archive}: {source.name}, {half} part:"
        expected = (count, *source.shape)
        if images.shape != expected or labels.shape != (count,):
            raise DataError(
                f"{where} found images {images.shape} and labels {labels.shape}, "
                f"expected {expected} and {(count,)}"
            )
        if labels.min() < 0 or labels.max() >= source.num_classes:
            raise DataError(
                f"{where} found labels {labels.min()}..{labels.max()}, "
                f"expected 0..{source.num_classes - 1}"
            )
        sizes = np.bincount(labels, minlength=source.num_classes)
        if source.balanced and sizes.min() != sizes.max():
            raise DataError(
                f"{where} found classes of {sizes.min()} to {sizes.max()} examples, "
                f"expected {count // source.num_classes} in each"
            )

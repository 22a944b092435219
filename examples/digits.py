"""The data of all programs here: 1,797 handwritten digits of 8 x 8 pixels."""

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

__all__ = ["TEST", "batches"]

_DIGITS = load_digits()
_IMAGES = np.float32(_DIGITS.images.reshape(-1, 64) / 16)
_LABELS = np.int32(_DIGITS.target)
TEST = (_IMAGES[1437:], _LABELS[1437:])


def batches(size: int = 128) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches for ever, in the same order each time."""
    rng = np.random.default_rng(0)
    while True:
        chosen = rng.choice(1437, size, replace=False)
        yield _IMAGES[chosen], _LABELS[chosen]

"""Images to change."""

import numpy as np


def some_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)

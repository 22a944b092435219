"""A small data set of pictures of several sizes, in class folders."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("apple", "bear", "cup")


def write_folders(root: Path, *, train: int = 4, test: int = 2) -> Path:
    """Write so many pictures of each class, each class with a colour of its own."""
    rng = np.random.default_rng(0)
    for half, count in (("train", train), ("val", test)):
        for label, name in enumerate(CLASSES):
            folder = root / half / name
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = rng.integers(9, 17, 2)
                pixels = rng.integers(0, 100, (height, width, 3), np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root

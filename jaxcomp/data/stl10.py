"""Read the binary files of STL-10."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import archives
from .dataset import DataError, Splits

__all__ = ["FILES", "read"]

FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
_SIDE = 96


def read(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the labelled images from the tar or a folder, and check their MD5s.

    Args:
      path: tar, zip or folder. Its 100,000 unlabelled images are not read.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      Coates, Lee and Ng, "An Analysis of Single Layer Networks in Unsupervised Feature
      Learning", https://cs.stanford.edu/~acoates/stl10/, 2011.
    """
    members = archives.read_members(path, [FILES], md5)
    archives.check_md5(path, members, md5)
    train, train_labels, test, test_labels = members.values()
    splits = Splits(
        _images(train, f"{path}: {FILES[0]}"),
        _labels(train_labels),
        _images(test, f"{path}: {FILES[2]}"),
        _labels(test_labels),
    )
    return splits, "MD5 of every file"


def _images(content: bytes, where: str) -> np.ndarray:
    """Images [N, 96, 96, 3] of records, a red, a green and a blue plane by columns."""
    pixels = np.frombuffer(content, np.uint8)
    if not pixels.size or pixels.size % (3 * _SIDE * _SIDE):
        size = 3 * _SIDE * _SIDE
        raise DataError(
            f"{where}: {pixels.size:,} bytes, expected a multiple of {size}"
        )
    planes = pixels.reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1))


def _labels(content: bytes) -> np.ndarray:
    """Labels from 0, which count from 1 in the file."""
    return np.frombuffer(content, np.uint8).astype(np.int32) - 1

"""Read the MATLAB files of the cropped street view house numbers."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import archives
from .dataset import DataError, Splits

__all__ = ["FILES", "read"]

FILES = ("train_32x32.mat", "test_32x32.mat")
_TEN = 10  # the label of the digit 0


def read(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the two .mat files from a folder, a tar or a zip, and check their MD5s.

    Args:
      path: folder, tar or zip.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature
      Learning", http://ufldl.stanford.edu/housenumbers/, 2011.
    """
    members = archives.read_members(path, [FILES], md5)
    archives.check_md5(path, members, md5)
    halves = [_decode(content, f"{path}: {name}") for name, content in members.items()]
    return Splits(*halves[0], *halves[1]), "MD5 of every file"


def _decode(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a file of MATLAB 5, which holds X [32, 32, 3, N] and y."""
    from scipy.io import loadmat

    try:
        found = loadmat(io.BytesIO(content), variable_names=("X", "y"))
    except Exception as error:  # scipy raises whatever its parser meets
        raise DataError(f"{where}: damaged MATLAB file: {error}") from error
    if missing := [name for name in ("X", "y") if name not in found]:
        raise DataError(f"{where}: no {' and no '.join(missing)} in the MATLAB file")
    images, labels = found["X"], found["y"]
    shapes = f"X {images.dtype} {images.shape}, y {labels.dtype} {labels.shape}"
    count = images.shape[-1]
    whole = images.shape == (32, 32, 3, count) and images.dtype == np.uint8
    if not whole or labels.shape != (count, 1) or labels.dtype.kind not in "iu":
        raise DataError(f"{where}: {shapes}, expected uint8 (32, 32, 3, N) and (N, 1)")
    labels = labels[:, 0].astype(np.int32)
    labels[labels == _TEN] = 0
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels

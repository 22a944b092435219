"""Read the idx files of MNIST and Fashion-MNIST."""

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import archives
from .dataset import DataError, Splits

__all__ = ["FILES", "read"]

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
UINT8 = 0x08  # the type code of idx for unsigned bytes


def read(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the four .gz files from a folder, a tar or a zip, and check their MD5s.

    Args:
      path: folder, tar or zip.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998;
      the format is described at https://yann.lecun.com/exdb/mnist/.
    """
    members = archives.read_members(path, [FILES], md5)
    archives.check_md5(path, members, md5)
    arrays = [_decode(content, f"{path}: {name}") for name, content in members.items()]
    train_images, train_labels, test_images, test_labels = arrays
    splits = Splits(
        train_images[..., None],
        train_labels.astype(np.int32),
        test_images[..., None],
        test_labels.astype(np.int32),
    )
    return splits, "MD5 of every file"


def _decode(content: bytes, where: str) -> np.ndarray:
    """Decode an idx file.

    It holds the bytes 0, 0, type, ndim, then ndim sizes as big-endian uint32, then the
    values.
    """
    try:
        raw = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{where}: damaged gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != bytes([0, 0, UINT8]):
        raise DataError(f"{where}: starts with {raw[:4].hex()}, expected 000008..")
    start = 4 + 4 * raw[3]
    shape = struct.unpack(f">{raw[3]}I", raw[4:start].ljust(4 * raw[3], b"\0"))
    values = np.frombuffer(raw, np.uint8)[start:]
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{where}: {values.size:,} values, expected shape {shape}")
    return values.reshape(shape)

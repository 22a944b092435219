"""The small image sets: where they come from, and how their files are read.

sources.toml says what is known of each.

References:
  Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
  https://www.cs.toronto.edu/~kriz/cifar.html, 2009.
  LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998.
  Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning",
  http://ufldl.stanford.edu/housenumbers/, 2011.
  Coates, Lee and Ng, "An Analysis of Single Layer Networks in Unsupervised Feature
  Learning", https://cs.stanford.edu/~acoates/stl10/, 2011.
"""

import functools
import gzip
import io
import struct
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.data.archives import read_known
from jaxcomp.data.dataset import DataError, Dataset, Splits, about
from jaxcomp.data.prepare import DataDir, Preparable, Progress, command, prepared


class Source(NamedTuple):
    """Where a data set comes from, and what is known of its content."""

    name: str  # as in TFDS
    shape: tuple[int, int, int]  # H, W, C
    num_classes: int
    counts: tuple[int, int]  # training and test examples
    balanced: bool  # all classes have the same number of examples in each split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    format: str  # of `FORMATS`
    files: tuple[str, ...]  # of the archive, which are read
    urls: tuple[str, ...]  # what `prepare` downloads
    md5: Mapping[str, str]  # name -> published MD5, of archives and their members

    about = property(about)  # what it holds, in one line


def _cifar(*contents: bytes, labels: int) -> Splits:
    """Records of label bytes, of which the last counts, and three planes; test last."""

    def half(*batches: bytes) -> tuple[np.ndarray, np.ndarray]:
        width = labels + 3 * 32 * 32
        content = b"".join(batches)
        if len(content) % width:
            message = f"{len(content):,} bytes, expected a multiple of {width}"
            raise DataError(f"the files of a half of CIFAR have {message}")
        records = np.frombuffer(content, np.uint8).reshape(-1, width)
        planes = records[:, labels:].reshape(-1, 3, 32, 32)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return images, records[:, labels - 1].astype(np.int32)

    return Splits(*half(*contents[:-1]), *half(contents[-1]))


def _idx(*contents: bytes) -> Splits:
    """Compressed arrays: the bytes 0, 0, type, ndim, ndim uint32 sizes, and values."""
    found = []
    for content in contents:
        raw = gzip.decompress(content)
        shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
        found.append(np.frombuffer(raw, np.uint8)[4 + 4 * raw[3] :].reshape(shape))
    train, labels, test, test_labels = found
    return Splits(
        train[..., None],
        labels.astype(np.int32),
        test[..., None],
        test_labels.astype(np.int32),
    )


def _mat(*contents: bytes) -> Splits:
    """Files of MATLAB 5, which hold X [32, 32, 3, N] and y, where 10 is the digit 0."""
    from scipy.io import loadmat

    found: list[np.ndarray] = []
    for content in contents:
        half = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        found.append(np.ascontiguousarray(half["X"].transpose(3, 0, 1, 2)))
        found.append(half["y"][:, 0].astype(np.int32) % 10)
    return Splits(*found)


def _stl10(*contents: bytes) -> Splits:
    """A red, a green and a blue plane by columns, and labels that count from 1."""
    images, labels, test, test_labels = (np.frombuffer(c, np.uint8) for c in contents)

    def squares(pixels: np.ndarray) -> np.ndarray:
        planes = pixels.reshape(-1, 3, 96, 96)
        return np.ascontiguousarray(planes.transpose(0, 3, 2, 1))

    return Splits(
        squares(images),
        labels.astype(np.int32) - 1,
        squares(test),
        test_labels.astype(np.int32) - 1,
    )


# What makes the arrays of the files of a source, in their order.
FORMATS: dict[str, Callable[..., Splits]] = {
    "cifar10": functools.partial(_cifar, labels=1),
    "cifar100": functools.partial(_cifar, labels=2),
    "idx": _idx,
    "mat": _mat,
    "stl10": _stl10,
}


def _known() -> dict[str, Source]:
    text = Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")
    found = {}
    for name, row in tomllib.loads(text).items():
        fixed: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[name] = Source(name, **fixed)
    return found


SOURCES = _known()


def read(source: Source, path: Path) -> tuple[Splits, str]:
    """Read an archive or an unpacked folder, and check it.

    Args:
      source: which data set.
      path: tar, zip or folder.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: the archive is damaged, incomplete, or has another content.
    """
    members, evidence = read_known(path, source.files, source.md5)
    splits = FORMATS[source.format](*members.values())
    check(splits, source, path)
    return splits, evidence


def arrays(source: Source) -> Preparable:
    """One file of arrays, from the archive of the publisher."""

    def write(path: Path, new: Path, progress: Progress) -> str:
        del progress  # it takes seconds
        splits, evidence = read(source, path)
        with new.open("wb") as stream:
            np.savez(stream, **splits._asdict())
        return evidence

    what = "{} training and {} test images".format(*source.counts)
    file = f"{source.name}.npz"
    urls, md5 = source.urls, source.md5
    return Preparable(source.name, what, file, write, urls=urls, md5=md5)


def check(splits: Splits, source: Source, archive: Path) -> None:
    """Refuse arrays with wrong counts, image shape, labels or class balance.

    Args:
      splits: arrays as read.
      source: of which data set.
      archive: from which they were read, for the message.

    Raises:
      DataError: names the archive, what was found and what was expected.
    """
    halves = zip(
        ("training", "test"), (splits[:2], splits[2:]), source.counts, strict=True
    )
    for half, (images, labels), count in halves:
        where = f"{archive}: {source.name}, {half} part: found"
        expected = (count, *source.shape)
        if images.shape != expected or labels.shape != (count,):
            shapes = f"images {images.shape} and labels {labels.shape}"
            raise DataError(f"{where} {shapes}, expected {expected} and {(count,)}")
        if labels.min() < 0 or labels.max() >= source.num_classes:
            values = f"labels {labels.min()}..{labels.max()}"
            raise DataError(f"{where} {values}, expected 0..{source.num_classes - 1}")
        sizes = np.bincount(labels, minlength=source.num_classes)
        if source.balanced and sizes.min() != sizes.max():
            found = f"classes of {sizes.min()} to {sizes.max()} examples"
            each = count // source.num_classes
            raise DataError(f"{where} {found}, expected {each} in each")


def load(source: Source, data_dir: DataDir = None) -> Dataset:
    """Load a prepared data set into memory, in the order of the original archive.

    Args:
      source: which data set.
      data_dir: as in `prepare.data_root`.

    Raises:
      DataError: it is not prepared, or damaged, which the CRC of each array tells.
    """
    file = prepared(arrays(source), data_dir)
    try:
        # Opened here, because `np.load` leaves a damaged file open.
        with file.open("rb") as stream, np.load(stream) as kept:
            splits = Splits(*(kept[field] for field in Splits._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        again = command(arrays(source), data_dir, "--force")
        message = f"{file} is damaged: {error}. Prepare it anew with"
        raise DataError(f"{message}\n  {again}") from error
    colours = source.mean, source.std
    return Dataset(source.name, *splits, source.num_classes, *colours)

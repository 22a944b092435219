"""ImageNet in 32x32 and 64x64: pickled batches, made to arrays that stay on disk."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.files import expanded, write_atomically

from . import archives, paths, pickles
from .builders import Progress
from .dataset import DataError, Dataset
from .installing import install, scratch_folder
from .paths import DataDir
from .sources import IMAGENET_COLOURS

__all__ = ["DOWNSAMPLED", "Downsampled", "find_prepared", "load", "prepare"]

BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
TEST = ("val_data",)
# The largest true member is a tenth of the training set in 64x64, 1.6 GB.
MEMBER_LIMIT = 2 * 2**30
_DONE = "complete.txt"


class Downsampled(NamedTuple):
    """One size of the downsampled ImageNet."""

    name: str
    side: int
    counts: tuple[int, int] = (1_281_167, 50_000)
    num_classes: int = 1000
    batches: tuple[str, ...] = BATCHES

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.side, self.side, 3

    @property
    def about(self) -> str:
        """What it holds, in one line."""
        train, test = self.counts
        return (
            f"{train} images of {self.side}x{self.side} in {self.num_classes} classes, "
            f"{test} for the test."
        )


DOWNSAMPLED = {
    f"imagenet{side}": Downsampled(f"imagenet{side}", side) for side in (32, 64)
}


def find_prepared(source: Downsampled, data_dir: DataDir = None) -> Path | None:
    """The prepared folder, or None.

    Args:
      source: which size.
      data_dir: as in `paths.data_root`.
    """
    folder = paths.data_root(data_dir) / source.name
    return folder if (folder / _DONE).is_file() else None


def load(source: Downsampled, data_dir: DataDir = None) -> Dataset:
    """A data set whose images are read from disk when they are needed.

    Args:
      source: which size.
      data_dir: as in `paths.data_root`.

    Raises:
      DataError: it is not prepared.
    """
    folder = find_prepared(source, data_dir)
    if folder is None:
        raise paths.not_prepared(source.name, data_dir)
    mapped = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r")
        for name in ("train_images", "test_images")
    }
    labels = {n: np.load(folder / f"{n}.npy") for n in ("train_labels", "test_labels")}
    return Dataset(
        source.name,
        mapped["train_images"],
        labels["train_labels"],
        mapped["test_images"],
        labels["test_labels"],
        source.num_classes,
        *IMAGENET_COLOURS,
    )


def prepare(
    source: Downsampled,
    *,
    archive: str | os.PathLike[str] | None,
    data_dir: DataDir = None,
    force: bool = False,
    progress: Progress = lambda task, done, total: None,
) -> Path | None:
    """Write the images of the pickled batches as arrays, one batch after the other.

    Args:
      source: which size.
      archive: a folder, tar or zip with train_data_batch_1 to 10 and val_data.
      data_dir: as in `paths.data_root`.
      force: prepare it again even if it was prepared before.
      progress: called with (task, done, total).

    Returns:
      The prepared folder; None if it was there before.

    Raises:
      DataError: there is no archive, or it holds another data set.

    References:
      Chrabaszcz, Loshchilov and Hutter, "A Downsampled Variant of ImageNet as an
      Alternative to the CIFAR datasets", https://arxiv.org/abs/1707.08819, 2017.
    """
    if find_prepared(source, data_dir) and not force:
        return None
    if archive is None:
        again = paths.command(source.name, data_dir, options="--archive FOLDER")
        raise DataError(
            f"{source.name} is not downloaded here, because image-net.org asks for a "
            f"login. Fetch its training and validation archives, unpack both into one "
            f"folder, and run\n  {again}"
        )
    path, root = expanded(archive), paths.data_root(data_dir)
    with scratch_folder(root) as scratch:
        written = scratch / "new"
        written.mkdir()
        halves = (("train", source.batches), ("test", TEST))
        for (half, names), count in zip(halves, source.counts, strict=True):
            shape = (count, source.side, source.side, 3)
            file = written / f"{half}_images.npy"
            images = np.lib.format.open_memmap(file, "w+", np.uint8, shape)
            labels, done = np.empty(count, np.int32), 0
            for pixels, found in _batches(source, path, names):
                if (end := done + len(found)) <= count:
                    images[done:end], labels[done:end] = pixels, found
                done = end
                progress(f"writing {half}", done, count)
            if done != count:
                where = f"{path}: {source.name}, {half} part"
                raise DataError(f"{where}: {done:,} images, expected {count:,}")
            images.flush()
            np.save(written / f"{half}_labels.npy", labels)
        write_atomically(written / _DONE, f"{source.name}\n")
        folder = root / source.name
        install(written, folder, scratch / "old")
    return folder


def _batches(
    source: Downsampled, path: Path, names: tuple[str, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of each batch; one is in memory at a time."""
    for name in names:
        content = archives.read_members(path, [[name]], {}, MEMBER_LIMIT)[name]
        where = f"{path}: {name}"
        batch = pickles.read_batch(content, where)
        if missing := [key for key in ("data", "labels") if key not in batch]:
            found = ", ".join(sorted(batch))
            raise DataError(f"{where}: no {' and no '.join(missing)}; it has {found}")
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        shape = (len(labels), 3 * source.side**2)
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            is_now = f"{pixels.dtype} {pixels.shape}"
            raise DataError(f"{where}: data is {is_now}, expected uint8 {shape}")
        if labels.dtype.kind not in "iu" or not len(labels):
            raise DataError(f"{where}: labels are {labels.dtype}, expected integers")
        if labels.min() < 1 or labels.max() > source.num_classes:
            values = f"{labels.min()}..{labels.max()}"
            message = f"labels {values}, expected 1..{source.num_classes}"
            raise DataError(f"{where}: {message}")
        planes = pixels.reshape(-1, 3, source.side, source.side)
        yield planes.transpose(0, 2, 3, 1), labels.astype(np.int32) - 1

"""ImageNet, in full and downsampled."""

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from jaxcomp.core.files import write_atomically
from jaxcomp.core.specs import Count, Range, method
from jaxcomp.data.archives import read_members
from jaxcomp.data.dataset import IMAGENET_COLOURS, DataError, Dataset, about
from jaxcomp.data.pictures import Share, class_folders
from jaxcomp.data.prepare import DataDir, Preparable, Progress, data_root, prepared

_DONE = "complete.txt"
BATCHES = tuple(f"train_data_batch_{number}.npz" for number in range(1, 11))
TEST = ("val_data.npz",)


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

    about = property(about)  # what it holds, in one line


DOWNSAMPLED = {
    f"imagenet{side}": Downsampled(f"imagenet{side}", side) for side in (32, 64)
}


def arrays(source: Downsampled) -> Preparable:
    """Its images as arrays on disk, from the publisher's .npz files of batches.

    References:
      Chrabaszcz, Loshchilov and Hutter, "A Downsampled Variant of ImageNet as an
      Alternative to the CIFAR datasets", https://arxiv.org/abs/1707.08819, 2017.
    """

    def write(path: Path, new: Path, progress: Progress) -> str:
        new.mkdir()
        halves = (("train", source.batches), ("test", TEST))
        for (half, names), count in zip(halves, source.counts, strict=True):
            file = new / f"{half}_images.npy"
            shape = (count, *source.shape)
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
            np.save(new / f"{half}_labels.npy", labels)
        write_atomically(new / _DONE, f"{source.name}\n")
        return "counts, sizes and labels"

    by_hand = (
        "because image-net.org asks for a login. Fetch its training and validation "
        "archives of .npz files, unpack both into one folder,"
    )
    what = "{} training and {} test images".format(*source.counts)
    return Preparable(source.name, what, source.name, write, _DONE, by_hand=by_hand)


def load(source: Downsampled, data_dir: DataDir = None) -> Dataset:
    """A data set whose images are read from disk when they are needed.

    Args:
      source: which size.
      data_dir: as in `prepare.data_root`.

    Raises:
      DataError: it is not prepared.
    """
    folder = prepared(arrays(source), data_dir)
    train, test = (
        (
            np.load(folder / f"{half}_images.npy", mmap_mode="r"),
            np.load(folder / f"{half}_labels.npy"),
        )
        for half in ("train", "test")
    )
    return Dataset(source.name, *train, *test, source.num_classes, *IMAGENET_COLOURS)


def _batches(
    source: Downsampled, path: Path, names: tuple[str, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of each batch; one is in memory at a time."""
    for name in names:
        content, where = read_members(path, [name])[name], f"{path}: {name}"
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as batch:
                pixels, labels = batch["data"], batch["labels"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{where}: damaged, or no batch: {error}") from error
        shape = (len(labels), 3 * source.side**2)
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            is_now = f"{pixels.dtype} {pixels.shape}"
            raise DataError(f"{where}: data is {is_now}, expected uint8 {shape}")
        if labels.dtype.kind not in "iu":
            raise DataError(f"{where}: labels are {labels.dtype}, expected integers")
        if labels.min() < 1 or labels.max() > source.num_classes:
            values = f"{labels.min()}..{labels.max()}"
            message = f"labels {values}, expected 1..{source.num_classes}"
            raise DataError(f"{where}: {message}")
        planes = pixels.reshape(-1, 3, source.side, source.side)
        yield planes.transpose(0, 2, 3, 1), labels.astype(np.int32) - 1


def folder_of(data_dir: DataDir) -> Path:
    """Where the class folders of `imagenet` are, if no path is given."""
    return data_root(data_dir) / "imagenet"


@method(given=1)
def imagenet(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    path: str = "",
    size: Count = 224,
    resize: Annotated[int, Range(least=0)] = 0,
    test_size: Annotated[int, Range(least=0)] = 0,
    scale_min: Share = 0.08,
    ratio: Share = 0.75,
    seed: Annotated[int, Range(least=0)] = 0,
) -> Dataset:
    """ImageNet (ILSVRC 2012): 1,281,167 pictures of 1,000 classes, 50,000 for the test.

    Args:
      data_dir: in which the folder imagenet has them, as train/SYNSET/*.JPEG and
        val/SYNSET/*.JPEG.
      path: of class folders that are elsewhere.
      size: as in `class_folders`, and so are the others.
      resize: likewise.
      test_size: likewise.
      scale_min: likewise.
      ratio: likewise.
      seed: likewise.

    Returns:
      The data set.

    Raises:
      DataError: there are no class folders.

    References:
      Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge",
      https://arxiv.org/abs/1409.0575, 2015.
    """
    folder = Path(path) if path else folder_of(data_dir)
    if not path and not folder.is_dir():
        raise DataError(
            f"imagenet is not here: looked for {folder}. Unpack the tar files of "
            "image-net.org into its folders train and val, with a folder for each "
            "synset, or name class folders that you have: imagenet(path='FOLDER')"
        )
    views = (size, resize, test_size, scale_min, ratio, seed)
    return class_folders(data_dir, os.fspath(folder), *views)._replace(name=name)

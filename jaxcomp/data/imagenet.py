"""ImageNet, in full and downsampled."""

import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, NamedTuple, TypeAlias

import numpy as np

from jaxcomp.core.files import write_atomically
from jaxcomp.core.specs import Count, Range, method
from jaxcomp.data.archives import read_images, read_members
from jaxcomp.data.dataset import IMAGENET_COLOURS, DataError, Dataset, about
from jaxcomp.data.pictures import Share, class_folders
from jaxcomp.data.prepare import DataDir, Preparable, Progress, prepared

SYNSET = re.compile(r"n[0-9]{8}")  # each is the name of a folder

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
# A line for each image, such as n01751748.
LIST = "imagenet_2012_validation_synset_labels.txt"
_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"


def synsets_of_validation(folder: Path, count: int) -> list[str]:
    """The synset of each validation image, in their order.

    Args:
      folder: holds the development kit, ILSVRC2012_devkit_t12.tar.gz, or a text with a
        synset in each line, imagenet_2012_validation_synset_labels.txt.
      count: of the images.

    Raises:
      DataError: both are missing, or the one that is there is damaged.
    """
    if (folder / LIST).is_file():
        where = folder / LIST
        found = where.read_text(encoding="utf-8", errors="replace").split()
    elif (folder / DEVKIT).is_file():
        where = folder / DEVKIT
        members = read_members(where, [[_TRUTH, _META]], {})
        names = _synsets(members[_META], f"{where}: {_META}")
        try:
            found = [names[int(line)] for line in members[_TRUTH].split()]
        except (KeyError, ValueError) as error:
            raise DataError(f"{where}: {_TRUTH} names no class: {error}") from error
    else:
        raise DataError(
            f"{folder} holds neither {DEVKIT} nor {LIST}, of which one says the "
            "classes of the validation images"
        )
    wrong = [name for name in found if not SYNSET.fullmatch(name)]
    if wrong:
        raise DataError(f"{where}: {wrong[0]!r} is no synset such as n01440764")
    if len(found) != count:
        message = f"classes of {len(found):,} images, expected {count:,}"
        raise DataError(f"{where}: {message}")
    return found


def _synsets(content: bytes, where: str) -> dict[int, str]:
    """Number of a class -> its synset, of those that have no classes below them."""
    from scipy.io import loadmat

    try:
        rows = np.atleast_1d(loadmat(io.BytesIO(content), squeeze_me=True)["synsets"])
        return {
            int(row["ILSVRC2012_ID"]): str(row["WNID"])
            for row in rows
            if int(row["num_children"]) == 0
        }
    except Exception as error:  # scipy raises whatever its parser meets
        raise DataError(f"{where}: damaged MATLAB file: {error}") from error


TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
COUNTS = (1_281_167, 50_000)
_DONE = "complete.txt"
_PICTURE = re.compile(r"[\w-]+\.JPEG")
_REPORT_EVERY = 500

Picture: TypeAlias = tuple[str, str, bytes]  # synset, file name and content


def pictures(counts: tuple[int, int] = COUNTS) -> Preparable:
    """ImageNet in full, which becomes train/SYNSET/*.JPEG and val/SYNSET/*.JPEG.

    Its archive is a folder with the two tar files, and with the development kit or a
    list of the synsets of the validation images.
    """

    def write(source: Path, new: Path, progress: Progress) -> str:
        synsets = synsets_of_validation(source, counts[1])
        train, validation = source / TRAIN, source / VALIDATION
        halves = (
            ("train", train, _train(train), counts[0]),
            ("val", validation, _validation(validation, synsets), counts[1]),
        )
        for half, path, found, count in halves:
            done = 0
            for synset, name, content in _whole(path, found):
                folder = new / half / synset
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
                done += 1
                if done % _REPORT_EVERY == 0 or done == count:
                    progress(f"writing {half}", done, count)
            if done != count:
                raise DataError(f"{path}: {done:,} images, expected {count:,}")
        write_atomically(new / _DONE, "imagenet\n")
        return "counts and names"

    by_hand = (
        "because image-net.org asks for a login. Class folders that you have need no "
        f"preparation: dataset=imagenet(path='FOLDER'). Else fetch {TRAIN}, "
        f"{VALIDATION} and {DEVKIT} into one folder,"
    )
    what = f"{counts[0]} training and {counts[1]} validation images"
    return Preparable("imagenet", what, "imagenet", write, _DONE, by_hand=by_hand)


def _train(path: Path) -> Iterator[Picture]:
    """Those of a tar of tars, one for each synset."""
    for name, stream in _members(path):
        synset, suffix = os.path.splitext(name)
        if suffix != ".tar" or not SYNSET.fullmatch(synset):
            raise DataError(f"{path}: it holds {name}, expected tar files as n01440764")
        for picture, content in _members(path, stream):
            if not _PICTURE.fullmatch(picture):
                message = f"it holds {picture!r}, which is no name of a picture"
                raise DataError(f"{path}: {name}: {message}")
            yield synset, picture, content.read()


def _validation(path: Path, synsets: Sequence[str]) -> Iterator[Picture]:
    for name, content in _members(path):
        found = re.fullmatch(r"ILSVRC2012_val_(\d{8})\.JPEG", name)
        number = int(found[1]) if found else 0
        if not 1 <= number <= len(synsets):
            message = f"it holds {name}, expected ILSVRC2012_val_00000001.JPEG and on"
            raise DataError(f"{path}: {message}")
        yield synsets[number - 1], name, content.read()


def _members(
    path: Path, stream: IO[bytes] | None = None
) -> Iterator[tuple[str, IO[bytes]]]:
    """Base name and stream of each file of a tar, which is read forward only."""
    with tarfile.open(None if stream else path, "r|*", fileobj=stream) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield PurePosixPath(member.name).name, content


def _whole(path: Path, found: Iterator[Picture]) -> Iterator[Picture]:
    """The same, with errors that say which file is damaged."""
    try:
        yield from found
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path} is cut off or damaged: {error}") from error


BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
TEST = ("val_data",)
# The largest true member is a tenth of the training set in 64x64, 1.6 GB.
MEMBER_LIMIT = 2 * 2**30


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
    """Its images as arrays on disk, from train_data_batch_1 to 10 and val_data.

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
        "archives, unpack both into one folder,"
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
        content = read_members(path, [[name]], {}, MEMBER_LIMIT)[name]
        where = f"{path}: {name}"
        pixels, found = read_images(content, 3 * source.side**2, ["labels"], where)
        labels = found[:, 0]
        if labels.min() < 1 or labels.max() > source.num_classes:
            values = f"{labels.min()}..{labels.max()}"
            message = f"labels {values}, expected 1..{source.num_classes}"
            raise DataError(f"{where}: {message}")
        planes = pixels.reshape(-1, 3, source.side, source.side)
        yield planes.transpose(0, 2, 3, 1), labels.astype(np.int32) - 1


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
      data_dir: where it is prepared.
      path: of class folders that are elsewhere; "" for those that `jaxcomp data
        prepare` has unpacked.
      size: as in `class_folders`, and so are the others.
      resize: likewise.
      test_size: likewise.
      scale_min: likewise.
      ratio: likewise.
      seed: likewise.

    Returns:
      The data set.

    Raises:
      DataError: it is not prepared.

    References:
      Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge",
      https://arxiv.org/abs/1409.0575, 2015.
    """
    more = "\nor name class folders: imagenet(path='FOLDER')"
    folder = Path(path) if path else prepared(pictures(), data_dir, more)
    views = (size, resize, test_size, scale_min, ratio, seed)
    return class_folders(data_dir, os.fspath(folder), *views)._replace(name=name)

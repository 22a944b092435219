"""ImageNet, in full and downsampled, and folders of classes."""

import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, NamedTuple, TypeAlias

import numpy as np

from jaxcomp.core.files import expanded, write_atomically
from jaxcomp.core.specs import Count, Range, method
from jaxcomp.data import archives, dataset
from jaxcomp.data import archives as pickles
from jaxcomp.data.dataset import DataDir, DataError, Dataset
from jaxcomp.data.pictures import Pictures, View, cropped
from jaxcomp.data.prepare import Progress, install, scratch_folder
from jaxcomp.data.sources import IMAGENET_COLOURS

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
        members = archives.read_members(where, [[_TRUTH, _META]], {})
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


NAME = "imagenet"
TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
COUNTS = (1_281_167, 50_000)
_DONE = "complete.txt"
_PICTURE = re.compile(r"[\w-]+\.JPEG")
_REPORT_EVERY = 500

Picture: TypeAlias = tuple[str, str, bytes]  # synset, file name and content


def find_imagenet(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The prepared folder, or None.

    Args:
      data_dir: as in `paths.data_root`.
    """
    folder = dataset.data_root(data_dir) / NAME
    return folder if (folder / _DONE).is_file() else None


def prepare_imagenet(
    archive: str | os.PathLike[str] | None,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = lambda task, done, total: None,
    counts: tuple[int, int] = COUNTS,
) -> Path | None:
    """Write train/SYNSET/*.JPEG and val/SYNSET/*.JPEG, completely or not at all.

    Args:
      archive: a folder with the two tar files, and with the development kit or a list
        of the synsets of the validation images; see `devkit`.
      data_dir: as in `paths.data_root`.
      force: prepare it again even if it was prepared before.
      progress: called with (task, done, total).
      counts: of the pictures that there have to be.

    Returns:
      The prepared folder; None if it was there before.

    Raises:
      DataError: a file is missing, damaged, or of another data set.
    """
    if find_imagenet(data_dir) and not force:
        return None
    if archive is None:
        again = dataset.command(NAME, data_dir, options="--archive FOLDER")
        raise DataError(
            "imagenet is not downloaded here, because image-net.org asks for a login. "
            f"Fetch {TRAIN}, {VALIDATION} and ILSVRC2012_devkit_t12.tar.gz into one "
            f"folder, and run\n  {again}\nClass folders that you have need no "
            "preparation: dataset=imagenet(path='FOLDER')"
        )
    source, root = expanded(archive), dataset.data_root(data_dir)
    synsets = synsets_of_validation(source, counts[1])
    with scratch_folder(root) as scratch:
        new = scratch / "new"
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
        install(new, root / NAME, scratch / "old")
    return root / NAME


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


def find_downsampled(source: Downsampled, data_dir: DataDir = None) -> Path | None:
    """The prepared folder, or None.

    Args:
      source: which size.
      data_dir: as in `paths.data_root`.
    """
    folder = dataset.data_root(data_dir) / source.name
    return folder if (folder / _DONE).is_file() else None


def load(source: Downsampled, data_dir: DataDir = None) -> Dataset:
    """A data set whose images are read from disk when they are needed.

    Args:
      source: which size.
      data_dir: as in `paths.data_root`.

    Raises:
      DataError: it is not prepared.
    """
    folder = find_downsampled(source, data_dir)
    if folder is None:
        raise dataset.not_prepared(source.name, data_dir)
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


def prepare_downsampled(
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
    if find_downsampled(source, data_dir) and not force:
        return None
    if archive is None:
        again = dataset.command(source.name, data_dir, options="--archive FOLDER")
        raise DataError(
            f"{source.name} is not downloaded here, because image-net.org asks for a "
            f"login. Fetch its training and validation archives, unpack both into one "
            f"folder, and run\n  {again}"
        )
    path, root = expanded(archive), dataset.data_root(data_dir)
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


Share = Annotated[float, Range(above=0, most=1)]
_TRAIN, _TEST = "train", ("val", "validation", "test")
_SUFFIXES = {".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm"}


@method("path", given=1)
def class_folders(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    path: str,
    size: Count = 224,
    resize: Annotated[int, Range(least=0)] = 0,
    test_size: Annotated[int, Range(least=0)] = 0,
    scale_min: Share = 0.08,
    ratio: Share = 0.75,
    seed: Annotated[int, Range(least=0)] = 0,
) -> Dataset:
    """Images of your own: a folder with train/CLASS/* and val/CLASS/*.

    Pictures are decoded when they are needed. One for training is a random window that
    is resized to `size`, as `random_resized_crop` does; one for the test is resized
    such that its shorter side is `resize`, and its middle is cut out.

    Args:
      data_dir: not used.
      path: of the folder. Instead of val it may have validation or test.
      size: of a side of an image for training.
      resize: 0 for 256/224 of the size.
      test_size: of a side of an image for the test; 0 for `size`.
      scale_min: the least share of a picture that a window has.
      ratio: width / height of the narrowest window.
      seed: of the windows; by default that of the run.

    Returns:
      The data set. Classes are numbered in the order of their names.

    Raises:
      DataError: a folder is missing or has no pictures.
    """
    del data_dir
    root = expanded(path)
    tests = [root / part for part in _TEST if (root / part).is_dir()]
    classes = _classes(root / _TRAIN)
    test_size = test_size or size
    resize = resize or round(test_size * 256 / 224)
    train = _pictures(root / _TRAIN, classes)
    test = _pictures(tests[0] if tests else root / _TEST[0], classes)

    def images(files: Sequence[Path], side: int) -> Pictures:
        def view(side: int) -> View:
            edge = round(side * resize / test_size)  # of those that are tested
            return cropped(side, edge, scale_min, ratio)

        return Pictures(
            read=lambda place: files[place].read_bytes(),
            where=lambda place: str(files[place]),
            shape=(len(files), side, side, 3),
            view=view(side),
            seed=seed,
            sized=view,
            file=lambda place: files[place],
        )

    return Dataset(
        name,
        images(train[0], size),
        train[1],
        images(test[0], test_size),
        test[1],
        len(classes),
        *IMAGENET_COLOURS,
    )


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
    folder = Path(path) if path else find_imagenet(data_dir)
    if folder is None:
        more = "\nor name class folders: imagenet(path='FOLDER')"
        raise dataset.not_prepared(NAME, data_dir, more=more)
    views = (size, resize, test_size, scale_min, ratio, seed)
    return class_folders(data_dir, os.fspath(folder), *views)._replace(name=name)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}, with a folder for each class")
    names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    if not names:
        raise DataError(f"{folder} has no folders, of which each is a class")
    return sorted(names)


def _pictures(folder: Path, classes: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """The files of all classes in the order of their names, and their labels."""
    if unknown := sorted({*_classes(folder)} - {*classes}):
        message = f"has the class {unknown[0]!r}, which {_TRAIN} has not"
        raise DataError(f"{folder} {message}")
    files, labels = [], []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = [e.name for e in os.scandir(folder / name) if _is_picture(e.name)]
        files += [folder / name / file for file in sorted(found)]
        labels += [label] * len(found)
    if not files:
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise DataError(f"{folder} holds no pictures ({suffixes}) in its folders")
    return files, np.asarray(labels, np.int32)


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES and name[0] != "."

"""Unpack the official tar files of ImageNet (ILSVRC 2012) into class folders."""

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from jaxcomp.files import expanded, write_atomically

from . import paths
from .builders import Progress
from .dataset import DataError
from .devkit import SYNSET, synsets_of_validation
from .installing import install, scratch_folder

__all__ = ["NAME", "find_prepared", "prepare"]

NAME = "imagenet"
TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
COUNTS = (1_281_167, 50_000)
_DONE = "complete.txt"
_PICTURE = re.compile(r"[\w-]+\.JPEG")
_REPORT_EVERY = 500

Picture: TypeAlias = tuple[str, str, bytes]  # synset, file name and content


def find_prepared(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The prepared folder, or None.

    Args:
      data_dir: as in `paths.data_root`.
    """
    folder = paths.data_root(data_dir) / NAME
    return folder if (folder / _DONE).is_file() else None


def prepare(
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
    if find_prepared(data_dir) and not force:
        return None
    if archive is None:
        again = paths.command(NAME, data_dir, options="--archive FOLDER")
        raise DataError(
            "imagenet is not downloaded here, because image-net.org asks for a login. "
            f"Fetch {TRAIN}, {VALIDATION} and ILSVRC2012_devkit_t12.tar.gz into one "
            f"folder, and run\n  {again}\nClass folders that you have need no "
            "preparation: dataset=imagenet(path='FOLDER')"
        )
    source, root = expanded(archive), paths.data_root(data_dir)
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

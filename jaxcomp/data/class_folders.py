"""Pictures in one folder for each class, decoded batch by batch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from jaxcomp.files import expanded
from jaxcomp.specs import Count, Range, method

from . import ilsvrc, paths
from .dataset import DataError, Dataset
from .pictures import Pictures, View, cropped
from .sources import IMAGENET_COLOURS

__all__ = ["class_folders", "imagenet"]

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
    folder = Path(path) if path else ilsvrc.find_prepared(data_dir)
    if folder is None:
        more = "\nor name class folders: imagenet(path='FOLDER')"
        raise paths.not_prepared(ilsvrc.NAME, data_dir, more=more)
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

"""Pictures that are decoded when they are needed: class folders, and their views."""

import functools
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from jaxcomp.core.errors import UserError
from jaxcomp.core.files import expanded
from jaxcomp.core.specs import Count, Range, method
from jaxcomp.data.dataset import IMAGENET_COLOURS, DataError, Dataset

if TYPE_CHECKING:
    from PIL import Image


# (picture, generator) -> uint8 [H, W, C]; the generator is None for an evaluation.
View: TypeAlias = Callable[["Image.Image", np.random.Generator | None], np.ndarray]
_MOST_THREADS = 16
# What Pillow raises for pictures that are cut off, damaged or none, and array_record.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, RuntimeError)


@dataclass(frozen=True)
class Pictures:
    """Images that are read and decoded when they are indexed.

    The random part of a picture follows from the seed, the epoch and its place alone.
    So a run that goes on from a checkpoint sees the same bits, and so do runs whose
    workers share the batches in another way.
    """

    # Encoded content of each place; any number of threads may call it.
    read: Callable[[int], bytes]
    where: Callable[[int], str]  # what a message calls it
    shape: tuple[int, int, int, int]  # as that of an array of all images
    view: View
    seed: int = 0
    epoch: int | None = None  # None: as for an evaluation, without random numbers
    # Views of another side; None where pictures are shown as they are, of one size.
    sized: Callable[[int], View] | None = None
    dtype: Any = np.dtype(np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: Any) -> np.ndarray:
        """Decode the images of some places.

        Args:
          places: integers of any shape, or a slice.

        Returns:
          uint8 [*places.shape, H, W, C].

        Raises:
          DataError: a picture is damaged; names it.
        """
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        places = np.asarray(places)
        found = list(_pool().map(self._decode, places.ravel().tolist()))
        images = np.stack(found) if found else np.empty((0, *self.shape[1:]), np.uint8)
        return images.reshape(*places.shape, *self.shape[1:])

    def in_epoch(self, epoch: int) -> "Pictures":
        """The same pictures, with the random views of an epoch."""
        return replace(self, epoch=epoch)

    def _decode(self, place: int) -> np.ndarray:
        from PIL import Image

        rng = None
        if self.epoch is not None:
            seeds = np.random.SeedSequence([self.seed, self.epoch, place])
            rng = np.random.Generator(np.random.Philox(seeds))
        try:
            with Image.open(io.BytesIO(self.read(place))) as image:
                mode = "L" if self.shape[-1] == 1 else "RGB"
                pixels = self.view(image.convert(mode), rng)
        except _DAMAGE as error:
            message = f"{self.where(place)} cannot be read as a picture: {error}"
            raise DataError(message) from error
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        if pixels.shape != self.shape[1:]:
            message = f"is of {pixels.shape}, the others of {self.shape[1:]}"
            raise DataError(f"{self.where(place)} {message}")
        return pixels


def of_side(images: Any, side: int) -> Any:
    """The same images, as squares of a side if they are `Pictures` that can be.

    Args:
      images: an array, or `Pictures`.
      side: of the results; 0 as they are.
    """
    if not side or not isinstance(images, Pictures) or images.sized is None:
        return images
    shape = (len(images), side, side, images.shape[-1])
    return replace(images, shape=shape, view=images.sized(side))


def take(arrays: tuple[Any, ...], places: np.ndarray, epoch: int) -> tuple[Any, ...]:
    """The examples of some places: rows of arrays, and pictures as an epoch sees them.

    Args:
      arrays: whose first axis counts the examples; NumPy arrays or `Pictures`.
      places: integers of any shape.
      epoch: of the run.

    Example:
      >>> [array.tolist() for array in take((np.arange(5),), np.array([[3], [1]]), 0)]
      [[[3], [1]]]
    """
    return tuple(
        (array.in_epoch(epoch) if isinstance(array, Pictures) else array)[places]
        for array in arrays
    )


def as_it_is(image: "Image.Image", rng: np.random.Generator | None) -> np.ndarray:
    """The view of pictures that have one size."""
    del rng
    return np.asarray(image)


def cropped(size: int, resize: int, scale_min: float, ratio: float) -> View:
    """Views of pictures of any size: a random window to train on, the middle to test.

    Args:
      size: of a side of the results.
      resize: of the shorter side of a picture, before its middle is cut out.
      scale_min: the least share of a random window, as in `random_resized_crop`.
      ratio: width / height of the narrowest one.

    Raises:
      UserError: resize is less than size.
    """
    if resize < size:
        message = f"resize is at least the {size} pixels that are cut out"
        raise UserError(f"{message}, not {resize}")

    def view(image: "Image.Image", rng: np.random.Generator | None) -> np.ndarray:
        from PIL import Image

        width, height = image.size
        if rng is None:
            side = size * min(height, width) / resize
            left, top = (width - side) / 2, (height - side) / 2
            box = (left, top, left + side, top + side)
        else:
            box = random_window(rng, height, width, scale_min, ratio)
        bilinear = Image.Resampling.BILINEAR
        return np.asarray(image.resize((size, size), bilinear, box=box))

    return view


def random_window(
    rng: np.random.Generator, height: int, width: int, scale_min: float, ratio: float
) -> tuple[int, int, int, int]:
    """A window as `random_resized_crop` draws it: left, top, right and bottom.

    Example:
      >>> random_window(np.random.default_rng(0), 1, 1, 0.5, 0.75)
      (0, 0, 1, 1)
    """
    for _ in range(10):
        area = height * width * rng.uniform(scale_min, 1.0)
        form = np.exp(rng.uniform(np.log(ratio), -np.log(ratio)))
        w, h = round(np.sqrt(area * form)), round(np.sqrt(area / form))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            top = int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height / ratio)), min(height, round(width / ratio))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """The threads that decode, shared by all data sets of a process."""
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "decode")


Share = Annotated[float, Range(above=0, most=1)]
_TESTS = ("val", "validation", "test")
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
    tests = [root / part for part in _TESTS if (root / part).is_dir()]
    classes = _classes(root / "train")
    test_size = test_size or size
    resize = resize or round(test_size * 256 / 224)
    train = _pictures(root / "train", classes)
    test = _pictures(tests[0] if tests else root / _TESTS[0], classes)

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
        message = f"has the class {unknown[0]!r}, which train has not"
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

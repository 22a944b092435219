"""Encoded pictures that are decoded when a batch needs them, by a pool of threads.

`Pictures` stands where an array of images stands in a `Dataset`: it has a length, a
shape and a dtype, and is indexed by the places of a batch.
"""

import functools
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from jaxcomp.errors import UserError

from .dataset import DataError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Pictures", "View", "as_it_is", "cropped", "middle", "of_side", "take"]

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
    file: Callable[[int], Path] | None = None  # in which a picture lies alone
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

    def only(self, places: np.ndarray, side: tuple[int, int], view: View) -> "Pictures":
        """Some of the pictures, in another view.

        Args:
          places: of those that stay.
          side: height and width of what the view shows.
          view: of each.
        """
        return replace(
            self,
            read=lambda place: self.read(int(places[place])),
            where=lambda place: self.where(int(places[place])),
            shape=(len(places), *side, self.shape[-1]),
            view=view,
            sized=None,
            file=None,
        )

    def sizes(self) -> np.ndarray:
        """Width and height of each picture as it is stored, [N, 2]; reads heads alone.

        Raises:
          DataError: a picture is damaged; names it.
        """
        return np.array(list(_pool().map(self._size, range(len(self)))))

    def _size(self, place: int) -> tuple[int, int]:
        from PIL import Image

        try:
            alone = self.file and self.file(place)
            with Image.open(alone or io.BytesIO(self.read(place))) as image:
                return image.size
        except _DAMAGE as error:
            message = f"{self.where(place)} cannot be read as a picture: {error}"
            raise DataError(message) from error

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

    tested = middle((size, size), resize)

    def view(image: "Image.Image", rng: np.random.Generator | None) -> np.ndarray:
        from PIL import Image

        if rng is None:
            return tested(image, rng)
        width, height = image.size
        box = random_window(rng, height, width, scale_min, ratio)
        bilinear = Image.Resampling.BILINEAR
        return np.asarray(image.resize((size, size), bilinear, box=box))

    return view


def middle(side: tuple[int, int], resize: int) -> View:
    """The middle of pictures of any size; where one is too narrow, less of it.

    Args:
      side: height and width of the results.
      resize: of the shorter side of a picture, before its middle is cut out.
    """

    def view(image: "Image.Image", rng: np.random.Generator | None) -> np.ndarray:
        from PIL import Image

        del rng
        width, height = image.size
        short = min(height, width)
        tall, wide = (length * short / resize for length in side)
        fits = min(1.0, height / tall, width / wide)
        tall, wide = fits * tall, fits * wide
        left, top = (width - wide) / 2, (height - tall) / 2
        box = (left, top, left + wide, top + tall)
        bilinear = Image.Resampling.BILINEAR
        return np.asarray(image.resize((side[1], side[0]), bilinear, box=box))

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

"""Pictures of a test set in rectangles near their own forms, of a few shapes.

A square cuts off a third of a picture of 3:2. Here each picture is shown in that one
of a few rectangles which is nearest to its form, and a batch has pictures of one shape.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcomp.errors import UserError
from jaxcomp.specs import Count, method

from .pictures import Pictures, middle

__all__ = ["Rectangles", "in_rectangles", "parts_of", "rectangular"]

LONGER = 4  # rectangles of each direction beside the square, each a program


@dataclass(frozen=True)
class Rectangular:
    """Which rectangles there are; as a function it shows images that were cut so."""

    shapes: tuple[tuple[int, int], ...]  # height and width, from the narrowest on
    resize: int  # of the shorter side of a picture, before its middle is cut out

    def __call__(self, images: jax.Array) -> jax.Array:
        return images[:, None]


@dataclass(frozen=True)
class Rectangles:
    """`Pictures` that are shown in rectangles, in groups of one shape."""

    pictures: Pictures
    view: Rectangular

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As that of an array of all images, were they all of the narrowest shape."""
        return (len(self), *self.view.shapes[0], self.pictures.shape[-1])

    @property
    def dtype(self) -> Any:
        return self.pictures.dtype

    @functools.cached_property
    def groups(self) -> list[tuple[np.ndarray, Pictures]]:
        """The places of the pictures of each shape, and these; no group is empty.

        The heads of all pictures are read for it, once.
        """
        forms = np.log(np.divide(*self.pictures.sizes().T))
        shapes = np.asarray(self.view.shapes, float)
        offered = np.log(shapes[:, 1] / shapes[:, 0])
        nearest = np.abs(forms[:, None] - offered).argmin(axis=1)
        found = []
        for number, shape in enumerate(self.view.shapes):
            places = np.flatnonzero(nearest == number)
            if len(places):
                view = middle(shape, self.view.resize)
                found.append((places, self.pictures.only(places, shape, view)))
        return found


@method("size", "resize")
def rectangular(
    name: str, size: Count = 224, resize: Count = 256, step: Count = 32
) -> Rectangular:
    """The middle of a picture in a rectangle near its form; batches have one shape.

    The shorter side of each of the 9 rectangles is `size`, and the longer one is longer
    by 0 to 4 times `step`. A picture is resized such that its shorter side is `resize`,
    and the middle is cut out. A picture that is narrower than all of them is cut more.

    Args:
      size: of the shorter side of what is cut out, in pixels.
      resize: of the shorter side, before.
      step: by which the longer sides differ.

    Returns:
      The one view.

    Raises:
      UserError: size is larger than resize.

    Example:
      >>> rectangular(size=224).shapes[:5]
      ((352, 224), (320, 224), (288, 224), (256, 224), (224, 224))

    References:
      Howard et al., "Training Imagenet in 3 hours for USD 25; and CIFAR10 for USD
      0.26", https://www.fast.ai/posts/2018-04-30-dawnbench-fastai.html, 2018.
    """
    if size > resize:
        message = f"size is at most the {resize} pixels of the resized picture"
        raise UserError(f"{message}, not {size}")
    longer = [size + step * number for number in range(1, LONGER + 1)]
    tall = [(side, size) for side in reversed(longer)]
    wide = [(size, side) for side in longer]
    return Rectangular((*tall, (size, size), *wide), resize)


def in_rectangles(images: Any, view: Any) -> Any:
    """The images of a test set for a view: in rectangles, if it is `rectangular`.

    Args:
      images: an array, or `Pictures`.
      view: from `make_views`.

    Raises:
      UserError: they all have one size.
    """
    if not isinstance(view, Rectangular):
        return images
    if not isinstance(images, Pictures) or images.sized is None:
        height, width = images.shape[1:3]
        raise UserError(
            "eval_view 'rectangular' is for pictures of several sizes that are decoded "
            "when they are needed, such as those of class_folders and imagenet: here "
            f"all are of {height}x{width}. Take 'center_crop' or ''"
        )
    return Rectangles(images, view)


def parts_of(arrays: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Examples in parts of one shape: those of `Rectangles` by group, others at once.

    Args:
      arrays: whose first axis counts the examples.

    Example:
      >>> [len(part) for part in parts_of((np.zeros((3, 2)), np.arange(3)))]
      [2]
    """
    images, *others = arrays
    if not isinstance(images, Rectangles):
        yield arrays
        return
    for places, pictures in images.groups:
        yield (pictures, *(array[places] for array in others))

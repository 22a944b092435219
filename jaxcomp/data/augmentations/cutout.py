"""Cutout: a square of each image is set to the mean."""

import jax
import jax.numpy as jnp

from jaxcomp.errors import UserError
from jaxcomp.specs import Count, method

from .augmentation import Augmentation

__all__ = ["cutout"]


@method("size")
def cutout(name: str, size: Count = 8) -> Augmentation:
    """Set a random square of each image to 0, the mean of normalised images.

    The square lies wholly inside the image; all its places are equally likely. In the
    paper its centre is inside, and the square may reach over the border.

    Args:
      size: of a side of the square, in pixels.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((1, 4, 4, 1))
      >>> cutout(size=3).apply(images, jax.random.key(0)).sum().item()
      7.0

    References:
      DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks
      with Cutout", https://arxiv.org/abs/1708.04552, 2017.
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        if size > min(height, width):
            message = f"a square of {size} pixels is larger than an image"
            raise UserError(f"{message} of {height}x{width}")
        keys = jax.random.split(key)
        top = jax.random.randint(keys[0], (count, 1), 0, height - size + 1)
        left = jax.random.randint(keys[1], (count, 1), 0, width - size + 1)
        rows, columns = jnp.arange(height)[None] - top, jnp.arange(width)[None] - left
        in_rows = (rows >= 0) & (rows < size)
        in_columns = (columns >= 0) & (columns < size)
        inside = in_rows[:, :, None, None] & in_columns[:, None, :, None]
        return jnp.where(inside, jnp.zeros((), images.dtype), images)

    return Augmentation(name, apply, needs="normal")

"""Random crops of random size and form, all resized to one size."""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from jaxcomp.errors import UserError
from jaxcomp.specs import Count, Range, method

from .augmentation import Augmentation

__all__ = ["Share", "draw_windows", "random_resized_crop", "resize_windows"]

Share = Annotated[float, Range(above=0, most=1)]
TRIES = 10  # as everybody does; then the largest window in the middle


@method("size", "scale_min")
def random_resized_crop(
    name: str, size: Count, scale_min: Share = 0.08, ratio: Share = 0.75
) -> Augmentation:
    """Cut a window of random area and form from each image, and resize it.

    The area is uniform in [scale_min, 1] of the image, and the logarithm of width /
    height is uniform between those of ratio and 1 / ratio. The window is resized with a
    triangle filter, which averages where it shrinks, as Pillow's bilinear filter does.

    Args:
      size: of a side of the results, in pixels.
      scale_min: the least share of the image's area.
      ratio: width / height of the narrowest window.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((2, 8, 8, 3), jnp.uint8)
      >>> random_resized_crop(size=4).apply(images, jax.random.key(0)).shape
      (2, 4, 4, 3)

    References:
      Szegedy et al., "Going Deeper with Convolutions", section 6,
      https://arxiv.org/abs/1409.4842, 2014.
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        if size > min(height, width):
            message = f"size {size} is larger than an image of {height}x{width}"
            raise UserError(message)
        windows = draw_windows(key, count, (height, width), scale_min, ratio)
        return resize_windows(images, windows, (size, size))

    def sized(side: int) -> Augmentation:
        return random_resized_crop(size=side, scale_min=scale_min, ratio=ratio)

    return Augmentation(name, apply, sized=sized)


def draw_windows(
    key: jax.Array, count: int, side: tuple[int, int], scale_min: float, ratio: float
) -> jax.Array:
    """Random windows of an image.

    Args:
      key: of all of them.
      count: of windows.
      side: height and width of the image.
      scale_min: the least share of its area.
      ratio: width / height of the narrowest one.

    Returns:
      int32 [count, 4]: top, left, height and width.

    Example:
      >>> draw_windows(jax.random.key(0), 2, (1, 1), 0.5, 0.75).tolist()
      [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    height, width = side
    keys = jax.random.split(key, 3)
    shape, widest = (count, TRIES), -math.log(ratio)
    area = jax.random.uniform(keys[0], shape, minval=scale_min) * (height * width)
    form = jnp.exp(jax.random.uniform(keys[1], shape, minval=-widest, maxval=widest))
    sizes = jnp.stack([jnp.sqrt(area / form), jnp.sqrt(area * form)], axis=-1)
    sizes = jnp.round(sizes).astype(jnp.int32)
    limit = jnp.asarray(side, jnp.int32)
    fits = jnp.all((sizes > 0) & (sizes <= limit[None, None]), axis=-1)
    first = jnp.argmax(fits, axis=1)[:, None, None]
    chosen = jnp.take_along_axis(sizes, first, axis=1)[:, 0]
    # The largest window of a valid form, where no try fits.
    whole = min(height, round(width / ratio)), min(width, round(height / ratio))
    found = jnp.any(fits, axis=1)[:, None]
    chosen = jnp.where(found, chosen, jnp.asarray(whole, jnp.int32)[None])
    room = limit[None] - chosen
    drawn = jax.random.uniform(keys[2], (count, 2)) * (room + 1).astype(jnp.float32)
    corner = jnp.minimum(drawn.astype(jnp.int32), room)
    return jnp.concatenate([jnp.where(found, corner, room // 2), chosen], axis=1)


def resize_windows(
    images: jax.Array, windows: jax.Array, new: tuple[int, int]
) -> jax.Array:
    """Resize a window of each image to one size, bilinearly and averaging.

    Args:
      images: [N, H, W, C].
      windows: int [N, 4]: top, left, height and width, inside the image.
      new: height and width of the results.

    Example:
      >>> images = jnp.arange(4.0).reshape(1, 2, 2, 1)
      >>> resize_windows(images, jnp.array([[0, 0, 2, 2]]), (1, 1)).item()
      1.5
    """
    rows = _weights(windows[:, 0], windows[:, 2], images.shape[1], new[0])
    columns = _weights(windows[:, 1], windows[:, 3], images.shape[2], new[1])
    resized = jnp.einsum(
        "nyh,nxw,nhwc->nyxc",
        rows,
        columns,
        images.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    if jnp.issubdtype(images.dtype, jnp.integer):
        resized = jnp.clip(jnp.round(resized), 0, jnp.iinfo(images.dtype).max)
    return resized.astype(images.dtype)


def _weights(start: jax.Array, length: jax.Array, old: int, new: int) -> jax.Array:
    """[N, new, old]: how much each pixel of a line counts for each of the new ones."""
    scale = length.astype(jnp.float32)[:, None, None] / new
    first = start[:, None, None]
    places = jnp.arange(old)[None, None]
    middles = jnp.arange(new, dtype=jnp.float32)[None, :, None] + 0.5
    centre = first.astype(jnp.float32) + middles * scale
    distance = jnp.abs(places.astype(jnp.float32) + 0.5 - centre)
    weights = jnp.maximum(0.0, 1.0 - distance / jnp.maximum(scale, 1.0))
    inside = (places >= first) & (places < first + length[:, None, None])
    weights = jnp.where(inside, weights, 0.0)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)

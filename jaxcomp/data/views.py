"""What a model is shown of an image when it is evaluated, on the device."""

from collections.abc import Callable
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, SpecError, build, importable, method
from jaxcomp.data.augmentations import resize_windows

# images [N, H, W, C] -> their views [N, views, H', W', C], of the same dtype
Views: TypeAlias = Callable[[jax.Array], jax.Array]


def make_views(spec: str) -> Views:
    """The views that a spec names.

    Args:
      spec: a name in `VIEWS`; "" for the image as it is; or an import path such as
        "my.images:four(size=24)" of a factory of your own.

    Example:
      >>> make_views("")(jnp.ones((2, 4, 4, 3))).shape
      (2, 1, 4, 4, 3)
    """
    if not spec.strip():
        return lambda images: images[:, None]
    name, known = importable(spec, VIEWS, "eval_view")
    made = build(name, known, "eval_view")
    if not callable(made):
        kind = type(made).__name__
        raise SpecError(f"eval_view {spec!r} makes no function, but a {kind}")
    return cast(Views, made)


@method("size", "resize")
def center_crop(name: str, size: Count = 224, resize: Count = 256) -> Views:
    """Resize the shorter side of an image, and cut out the middle.

    Args:
      size: of a side of what is cut out, in pixels.
      resize: of the shorter side, before.

    Returns:
      The one view.

    Raises:
      UserError: size is larger than resize.

    Example:
      >>> view = jax.jit(center_crop(size=4, resize=6))
      >>> view(jnp.ones((2, 12, 9, 3))).shape
      (2, 1, 4, 4, 3)
    """
    if size > resize:
        message = (
            f"size is at most the {resize} pixels of the resized image, not {size}"
        )
        raise UserError(message)

    def view(images: jax.Array) -> jax.Array:
        count, height, width, _ = images.shape
        short = min(height, width)
        new = round(height * resize / short), round(width * resize / short)
        whole = jnp.broadcast_to(jnp.array([[0, 0, height, width]]), (count, 4))
        resized = resize_windows(images, whole, new)
        top, left = (new[0] - size) // 2, (new[1] - size) // 2
        return resized[:, None, top : top + size, left : left + size]

    return view


@method("size")
def ten_crop(name: str, size: Count) -> Views:
    """The four corners and the middle of an image, and their mirror images.

    Args:
      size: of a side of each, in pixels.

    Returns:
      The ten views, over which the logits of the model are averaged.

    Example:
      >>> ten_crop(size=4)(jnp.ones((2, 6, 6, 3))).shape
      (2, 10, 4, 4, 3)

    References:
      Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional
      Neural Networks", section 4.1, 2012.
    """

    def view(images: jax.Array) -> jax.Array:
        _, height, width, _ = images.shape
        if size > min(height, width):
            message = f"size {size} is larger than an image of {height}x{width}"
            raise UserError(message)
        low, right = height - size, width - size
        corners = [(0, 0), (0, right), (low, 0), (low, right), (low // 2, right // 2)]
        five = [images[:, r : r + size, c : c + size] for r, c in corners]
        stacked = jnp.stack(five, axis=1)
        return jnp.concatenate([stacked, stacked[:, :, :, ::-1]], axis=1)

    return view


VIEWS: dict[str, Callable[..., Views]] = {
    "center_crop": center_crop,
    "ten_crop": ten_crop,
}

"""Augmentations in a row, and the normalisation of pixels, on the device.

They take images as they are stored, as uint8, so that the host sends one byte per value
to the device.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp

from jaxcomp.imported import importable
from jaxcomp.specs import SpecError, build, pieces

from .augmentations import REGISTRY, Augmentation, Stage

__all__ = ["make_augment", "normalize"]

_STAGES = get_args(Stage)


def make_augment(
    spec: str, *, mean: Sequence[float], std: Sequence[float], size: int = 0
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Make the function that augments and normalises a training batch.

    Augmentations run from left to right. Pixels are scaled to 0..1, and then
    normalised, as soon as one of them needs it, or at the end.

    Args:
      spec: names in `augmentations.REGISTRY`, with "|" between them; "" for none. An
        import path such as "my.images:blur(size=3)" names a factory of your own. It
        returns an `Augmentation`, or a function of images as they are stored.
      mean: per channel, for pixels scaled to 0..1.
      std: per channel, for pixels scaled to 0..1.
      size: of a side of the results; 0 as they come. An augmentation that resizes, such
        as `random_resized_crop`, resizes to it. Other results are resized in the end,
        so that the sizes of augmentations are those of stored pixels.

    Returns:
      (images uint8 [N, H, W, C], key) -> float32 images.

    Raises:
      SpecError: unknown names or arguments, or an order that makes no sense.

    Example:
      >>> augment = make_augment("crop(pad=1) | flip", mean=[0.5], std=[0.5])
      >>> augment(jnp.zeros((2, 8, 8, 1), jnp.uint8), jax.random.key(0)).max().item()
      -1.0
    """
    links = [_make(piece) for piece in pieces(spec)] if spec.strip() else []
    _check_order(links)
    if size:
        links = [link.sized(size) if link.sized else link for link in links]

    def augment(images: jax.Array, key: jax.Array) -> jax.Array:
        stage = 0
        for number, link in enumerate(links):
            wanted = max(stage, _STAGES.index(link.needs))
            images = _scaled(images, stage, wanted, mean, std)
            stage = wanted
            images = link.apply(images, jax.random.split(key, len(links))[number])
        images = _scaled(images, stage, len(_STAGES) - 1, mean, std)
        return resize(images, size) if size else images

    return augment


def resize(images: jax.Array, side: int) -> jax.Array:
    """Squares of a side, bilinearly; where an image shrinks, pixels are averaged.

    Args:
      images: float32 [N, H, W, C].
      side: of the results.

    Example:
      >>> resize(jnp.arange(4.0).reshape(1, 2, 2, 1), 1).item()
      1.5
    """
    count, _, _, channels = images.shape
    shape = (count, side, side, channels)
    if images.shape == shape:
        return images
    return jax.image.resize(images, shape, "linear", antialias=True)


def normalize(
    images: jax.Array, mean: Sequence[float], std: Sequence[float]
) -> jax.Array:
    """Scale pixels per channel: y = (x / 255 - mean) / std.

    Args:
      images: uint8 [..., C].
      mean: per channel, for pixels scaled to 0..1.
      std: per channel, for pixels scaled to 0..1.

    Returns:
      float32 of the same shape.

    Example:
      >>> normalize(jnp.full((1, 1, 1), 255, jnp.uint8), [0.5], [0.25]).item()
      2.0
    """
    return _scaled(images, 0, len(_STAGES) - 1, mean, std)


def _scaled(
    images: jax.Array,
    stage: int,
    wanted: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> jax.Array:
    """Images of a later stage."""
    if stage < 1 <= wanted:
        images = images.astype(jnp.float32) / 255.0
    if stage < 2 <= wanted:
        # Explicit axes: callers may forbid implicit rank promotion.
        per_channel = (1,) * (images.ndim - 1) + (-1,)
        centre = jnp.asarray(mean, jnp.float32).reshape(per_channel)
        scale = jnp.asarray(std, jnp.float32).reshape(per_channel)
        images = (images - centre) / scale
    return images


def _make(spec: str) -> Augmentation:
    """The augmentation that a part of a composition names."""
    name, known = importable(spec, REGISTRY, "augmentation")
    made: Any = build(name, known, "augmentation")
    if isinstance(made, Augmentation):
        return made
    if callable(made):
        return Augmentation(spec, cast(Any, made))
    kind = type(made).__name__
    message = "makes no Augmentation, and no function of images and a key, but a value"
    raise SpecError(f"augmentation {spec!r} {message} of type {kind}")


def _check_order(links: Sequence[Augmentation]) -> None:
    """Refuse one that needs pixels as they were before another one."""
    for i, link in enumerate(links):
        for later in links[i + 1 :]:
            if link.needs == "normal" and later.needs == "unit":
                message = (
                    f"{link.name} works on normalised images and {later.name} on those "
                    "before: let it come first"
                )
                raise SpecError(f"{message}: {later.name} | {link.name}")

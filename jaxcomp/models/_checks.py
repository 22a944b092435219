"""Checks of the fields and images of models."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.errors import UserError


def check_images(images: jax.Array, min_size: int = 1) -> None:
    """Refuse images that are not a floating-point batch in the order NHWC.

    Args:
      images: the batch to check.
      min_size: smallest height and width that the model can process.

    Raises:
      UserError: says the shape or dtype and what is valid.
    """
    if images.ndim != 4 or min(images.shape[1:3]) < min_size:
        raise UserError(
            f"images have shape {images.shape}; valid is [batch, height, width, "
            f"channels] with height and width of at least {min_size}"
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise UserError(
            f"images have dtype {images.dtype}; valid is a floating type such as "
            "float32"
        )


def check_positive(**values: int) -> None:
    """Refuse a value below 1.

    Args:
      **values: the values to check, by the name to show.

    Raises:
      UserError: for the first such value.

    Example:
      >>> check_positive(width=0)
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: width=0 is not valid; it must be at least 1
    """
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name}={value} is not valid; it must be at least 1")


def check_rates(**values: float) -> None:
    """Refuse a probability of dropout that is not in [0, 1).

    Args:
      **values: the values to check, by the name to show.

    Raises:
      UserError: for the first such value.

    Example:
      >>> check_rates(dropout=1.0)
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: dropout=1.0 is not valid; it must be in [0, 1)
    """
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise UserError(f"{name}={value} is not valid; it must be in [0, 1)")


def blocks(depth: int, offset: int, width: int = 1) -> list[dict[str, Any]]:
    """The arguments of the blocks of a network for CIFAR.

    The network has three stages of n blocks each, with 16, 32 and 64 channels times the
    width. The first block of the last two stages has stride 2.

    Args:
      depth: number of weighted layers, 6n + offset.
      offset: number of weighted layers outside the blocks.
      width: factor on the number of channels.

    Returns:
      For each block its features, stride and name.

    Raises:
      UserError: no n of at least 1 gives this depth.

    Example:
      >>> blocks(14, offset=2)[2]
      {'features': 32, 'stride': 2, 'name': 'stage2_block1'}
      >>> blocks(27, offset=4)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: depth=27 is not 6n+4 with n >= 1; nearest valid ...
    """
    per_stage, rest = divmod(depth - offset, 6)
    if rest or per_stage < 1:
        nearest = sorted({6 * max(n, 1) + offset for n in (per_stage, per_stage + 1)})
        raise UserError(
            f"depth={depth} is not 6n+{offset} with n >= 1; "
            f"nearest valid depths: {', '.join(map(str, nearest))}"
        )
    return [
        {
            "features": features * width,
            "stride": 2 if stage > 1 and block == 1 else 1,
            "name": f"stage{stage}_block{block}",
        }
        for stage, features in ((1, 16), (2, 32), (3, 64))
        for block in range(1, per_stage + 1)
    ]

"""What an augmentation is: a pure function of images and a key, and its place."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

from jaxcomp.errors import UserError

__all__ = ["Augmentation", "Stage", "check_channels"]

# How pixels are given: as they are stored (uint8), as float32 from 0 to 1, or
# normalised per channel. An augmentation of stored images works on the others too.
Stage = Literal["stored", "unit", "normal"]


class Augmentation(NamedTuple):
    """A random change of a batch of images."""

    name: str  # the spec that builds it
    # (images [N, H, W, C], key) -> images [N, H', W', C] of the same dtype
    apply: Callable[[jax.Array, jax.Array], jax.Array]
    needs: Stage = "stored"
    # (side) -> the same with results of another size; None for one that keeps the size
    sized: Callable[[int], "Augmentation"] | None = None


def check_channels(name: str, images: jax.Array, valid: tuple[int, ...]) -> None:
    """Refuse images whose colours an augmentation does not know.

    Example:
      >>> check_channels("flip", jax.numpy.ones((1, 4, 4, 3)), (1, 3))
    """
    channels = images.shape[-1]
    if channels not in valid:
        wanted = " or ".join(map(str, valid))
        message = f"works on images of {wanted} colour channels, not {channels}"
        raise UserError(f"{name} {message}")

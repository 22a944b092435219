"""Random mirror images."""

import jax
import jax.numpy as jnp

from jaxcomp.specs import method

from .augmentation import Augmentation

__all__ = ["flip"]


@method()
def flip(name: str) -> Augmentation:
    """Mirror each image left to right with probability 1/2; not for digits or text.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.ones((2, 5, 5, 1), jnp.uint8)
      >>> flip().apply(images, jax.random.key(0)).shape
      (2, 5, 5, 1)
    """

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
        return jnp.where(mirrored, images[:, :, ::-1], images)

    return Augmentation(name, apply)

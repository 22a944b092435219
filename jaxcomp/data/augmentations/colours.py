"""Random changes of colours: of pixels from 0 to 1, before they are normalised.

As in the ImageNet recipes for Torch, results are not clipped to 0 and 1.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from jaxcomp.specs import Range, method

from .augmentation import Augmentation, check_channels

__all__ = ["color_jitter", "pca_lighting"]

Strength = Annotated[float, Range(least=0)]
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601
# Eigenvalues and eigenvectors (columns) of the colours of ImageNet's pixels.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)


@method("brightness", "contrast", "saturation")
def color_jitter(
    name: str,
    brightness: Strength = 0.4,
    contrast: Strength = 0.4,
    saturation: Strength = 0.4,
) -> Augmentation:
    """Draw each image towards, or away from, black, its mean grey and its own greys.

    x + a (t - x), with a uniform in [-strength, strength], for three targets t: 0
    (brightness), the mean grey of the image (contrast), the grey of each pixel
    (saturation). Each image takes the three in a random order of its own.

    Args:
      brightness: strength of the first.
      contrast: of the second.
      saturation: of the third.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.full((1, 2, 2, 3), 0.5)
      >>> jitter = color_jitter(brightness=0.1, contrast=0, saturation=0)
      >>> bool(abs(jitter.apply(images, jax.random.key(0)) - 0.5).max() <= 0.05)
      True

    References:
      Howard, "Some Improvements on Deep Convolutional Neural Network Based Image
      Classification", https://arxiv.org/abs/1312.5402, 2013.
    """
    most = (brightness, contrast, saturation)

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        check_channels(name, images, (1, 3))
        key_order, key_strength = jax.random.split(key)
        slots = jnp.broadcast_to(jnp.arange(3), (len(images), 3))
        order = jax.random.permutation(key_order, slots, axis=1, independent=True)
        drawn = jax.random.uniform(key_strength, (len(images), 3), minval=-1.0)
        strengths = drawn * jnp.asarray(most, jnp.float32)[None]
        for slot in range(3):
            which = order[:, slot, None]
            strength = jnp.take_along_axis(strengths, which, axis=1)[..., None, None]
            kind = which[..., None, None]
            grey = _grey(images)
            mean = jnp.mean(grey, axis=(1, 2, 3), keepdims=True)
            target = jnp.where(kind == 0, 0.0, jnp.where(kind == 1, mean, grey))
            images = images + strength * (target - images)
        return images

    return Augmentation(name, apply, needs="unit")


@method("strength")
def pca_lighting(name: str, strength: Strength = 0.1) -> Augmentation:
    """Add to all pixels of an image a random colour along those of ImageNet.

    x + sum_i a_i l_i v_i with a_i ~ N(0, strength^2), and l_i, v_i the eigenvalues and
    eigenvectors of the covariance of ImageNet's pixels.

    Args:
      strength: the standard deviation of a_i.

    Returns:
      The augmentation.

    Example:
      >>> images = jnp.zeros((1, 2, 2, 3))
      >>> pca_lighting(strength=0).apply(images, jax.random.key(0)).max().item()
      0.0

    References:
      Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional
      Neural Networks", section 4.1, 2012.
    """
    scaled = [
        [v * w for v, w in zip(r, _EIGENVALUES, strict=True)] for r in _EIGENVECTORS
    ]

    def apply(images: jax.Array, key: jax.Array) -> jax.Array:
        check_channels(name, images, (3,))
        drawn = strength * jax.random.normal(key, (len(images), 3))
        colour = jnp.sum(jnp.asarray(scaled)[None] * drawn[:, None], axis=-1)
        return images + colour[:, None, None]

    return Augmentation(name, apply, needs="unit")


def _grey(images: jax.Array) -> jax.Array:
    """The luminance of each pixel, [N, H, W, 1]; a single channel is its own."""
    if images.shape[-1] == 1:
        return images
    weights = jnp.asarray(_LUMINANCE, images.dtype)[None, None, None]
    return jnp.sum(images * weights, axis=-1, keepdims=True)

"""Augmentations by name: random changes of training images, on the device.

Each is a factory of an `Augmentation`, which works under jit, vmap and pmap.
"""

from collections.abc import Callable

from .augmentation import Augmentation, Stage
from .colours import color_jitter, pca_lighting
from .crop import crop
from .cutout import cutout
from .flip import flip
from .resized_crop import random_resized_crop

__all__ = ["REGISTRY", "Augmentation", "Stage"]

REGISTRY: dict[str, Callable[..., Augmentation]] = {
    "color_jitter": color_jitter,
    "crop": crop,
    "cutout": cutout,
    "flip": flip,
    "pca_lighting": pca_lighting,
    "random_resized_crop": random_resized_crop,
}

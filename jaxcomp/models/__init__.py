"""Image classifiers by name, as flax modules.

A model is called as `model(images, train)` with images [batch, height, width, channels]
of a float type. It returns float32 logits [batch, num_classes]. Its variables are
`params` and `batch_stats`.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from flax import linen as nn

from jaxcomp.errors import UserError
from jaxcomp.models.resnet9 import ResNet9
from jaxcomp.models.resnet_cifar import ResNetCifar
from jaxcomp.models.tiny import Tiny
from jaxcomp.models.wide_resnet import WideResNet
from jaxcomp.specs import suggest

__all__ = ["REGISTRY", "ResNet9", "ResNetCifar", "Tiny", "WideResNet", "make"]

REGISTRY: dict[str, Callable[..., nn.Module]] = {
    "tiny": Tiny,
    "resnet8": partial(ResNetCifar, depth=8),
    "resnet20": partial(ResNetCifar, depth=20),
    "resnet32": partial(ResNetCifar, depth=32),
    "resnet44": partial(ResNetCifar, depth=44),
    "resnet56": partial(ResNetCifar, depth=56),
    "resnet110": partial(ResNetCifar, depth=110),
    "resnet9": ResNet9,
    "wide_resnet": WideResNet,
}


def _keywords(factory: Callable[..., nn.Module]) -> list[str]:
    # Arguments that a partial fixes are part of the name, so resnet20 takes no depth.
    # flax adds the last two to every module.
    fixed = {*getattr(factory, "keywords", ()), "parent", "name"}
    return [key for key in inspect.signature(factory).parameters if key not in fixed]


def make(name: str, num_classes: int = 10, **kw: Any) -> nn.Module:
    """The registered model `name`, as a module without parameters.

    Args:
      name: a key of `REGISTRY`.
      num_classes: number of logits.
      **kw: further fields of the model, such as `width` or `bn_axis`.

    Raises:
      UserError: a name, a field or the value of a field is not valid.

    Example:
      >>> make("resnet20", shortcut="B").shortcut
      'B'
      >>> make("resnet9", widht=2)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
          ...
      jaxcomp.errors.UserError: resnet9 has no keyword 'widht'. Did you mean ...
    """
    if name not in REGISTRY:
        raise UserError(f"unknown model {name!r}. {suggest(name, REGISTRY)}")
    factory = REGISTRY[name]
    valid = _keywords(factory)
    for key in kw:
        if key not in valid:
            raise UserError(f"{name} has no keyword {key!r}. {suggest(key, valid)}")
    return factory(num_classes=num_classes, **kw)

"""Image classifiers by name, as flax modules.

A model is called as `model(images, train)` with images [batch, height, width, channels]
of a float type. It returns float32 logits [batch, num_classes]. Its variables are
`params`, and `batch_stats` if it has batch normalisation. With dropout, training needs
the random key `rngs={"dropout": key}`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from flax import linen as nn

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import suggest
from jaxcomp.models._layers import LOCAL, Statistics, check_group
from jaxcomp.models.alexnet import AlexNet, AlexNetDense, AlexNetImageNet
from jaxcomp.models.densenet import IMAGENET as DENSE_BLOCKS
from jaxcomp.models.densenet import DenseNet
from jaxcomp.models.lenet import LeNet
from jaxcomp.models.lstm import Lstm
from jaxcomp.models.mlp import Logistic, Mlp
from jaxcomp.models.mobilenet_v2 import MobileNetV2
from jaxcomp.models.resnet9 import ResNet9
from jaxcomp.models.resnet_cifar import ResNetCifar
from jaxcomp.models.resnet_imagenet import STAGES as RESNET_DEPTHS
from jaxcomp.models.resnet_imagenet import ResNetImageNet
from jaxcomp.models.tiny import Tiny
from jaxcomp.models.vgg import STAGES as VGG_DEPTHS
from jaxcomp.models.vgg import Vgg
from jaxcomp.models.wide_resnet import WideResNet

__all__ = [
    "LANGUAGE",
    "LOCAL",
    "REGISTRY",
    "AlexNet",
    "AlexNetDense",
    "AlexNetImageNet",
    "DenseNet",
    "LeNet",
    "Logistic",
    "Lstm",
    "Mlp",
    "MobileNetV2",
    "ResNet9",
    "ResNetCifar",
    "ResNetImageNet",
    "Statistics",
    "Tiny",
    "Vgg",
    "WideResNet",
    "check_group",
    "make",
]


def _named(model: Callable[..., nn.Module], **fixed: Any) -> Callable[..., nn.Module]:
    """A factory of which a name fixes some fields: resnet20 takes no depth.

    Nor can a spec give the two fields by which flax places a module in its parent.
    """

    def factory(**kw: Any) -> nn.Module:
        return model(**fixed, **kw)

    signature = inspect.signature(model)
    hidden = {*fixed, "parent", "name"}
    shown = [p for p in signature.parameters.values() if p.name not in hidden]
    factory.__doc__ = inspect.getdoc(model)
    factory.regime = getattr(model, "regime", ())  # pyright: ignore[reportFunctionMemberAccess]
    brought = getattr(model, "input_transform", {})
    factory.input_transform = brought  # pyright: ignore[reportFunctionMemberAccess]
    factory.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=shown
    )
    return factory


_STEMMED = {
    n: {"blocks": blocks, "growth": 32, "bc": True, "stem": True}
    for n, blocks in DENSE_BLOCKS.items()
}
REGISTRY: dict[str, Callable[..., nn.Module]] = {
    "tiny": _named(Tiny),
    "logistic": _named(Logistic),
    "mlp": _named(Mlp),
    "lenet": _named(LeNet),
    "alexnet": _named(AlexNet),
    "alexnet_dense": _named(AlexNetDense),
    "alexnet_imagenet": _named(AlexNetImageNet),
    **{f"vgg{n}": _named(Vgg, depth=n) for n in VGG_DEPTHS},
    **{f"resnet{n}": _named(ResNetCifar, depth=n) for n in (8, 20, 32, 44, 56, 110)},
    **{f"resnet{n}": _named(ResNetImageNet, depth=n) for n in RESNET_DEPTHS},
    "resnet9": _named(ResNet9),
    "wide_resnet": _named(WideResNet),
    "densenet": _named(DenseNet),
    **{f"densenet{n}": _named(DenseNet, depth=n, **_STEMMED[n]) for n in _STEMMED},
    "mobilenet_v2": _named(MobileNetV2),
}
# Language models, called as model(tokens, carry, train), with a method carry(examples).
LANGUAGE: dict[str, Callable[..., nn.Module]] = {"lstm": _named(Lstm)}


def make(name: str, num_classes: int = 10, **kw: Any) -> nn.Module:
    """The registered model `name`, without parameters yet.

    Args:
      name: a key of `REGISTRY`.
      num_classes: number of logits.
      **kw: further fields of the model, such as `width` or `statistics`.

    Raises:
      UserError: a name, a field or the value of a field is not valid.

    Example:
      >>> make("resnet20", shortcut="B").shortcut
      'B'
      >>> make("resnet9", widht=2)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
          ...
      jaxcomp.UserError: resnet9 has no keyword 'widht'. Did you mean ...
    """
    if name not in REGISTRY:
        raise UserError(f"unknown model {name!r}. {suggest(name, REGISTRY)}")
    valid = inspect.signature(REGISTRY[name]).parameters
    for key in kw:
        if key not in valid:
            raise UserError(f"{name} has no keyword {key!r}. {suggest(key, valid)}")
    return REGISTRY[name](num_classes=num_classes, **kw)

"""Shapes of the gradients of well-known models, by their names."""

import math
from collections.abc import Callable

from jaxcomp.core.errors import UserError

Shapes = dict[str, tuple[int, ...]]


def resnet50(scale: float = 1.0) -> Shapes:
    """ResNet-50 on ImageNet, as flax has it: 161 tensors, 25,557,032 parameters.

    Args:
      scale: of all channels and classes; 0.1 makes a hundredth of the parameters.

    Example:
      >>> resnet50()["stem/conv"]
      (7, 7, 3, 64)
    """
    shapes: Shapes = {}

    def add(name: str, side: int, inputs: int, outputs: int) -> None:
        """A convolution (height, width, in, out) and its batch norm."""
        shapes[f"{name}/conv"] = (side, side, inputs, outputs)
        shapes[f"{name}/scale"] = shapes[f"{name}/bias"] = (outputs,)

    channels = _scaled(64, scale)
    add("stem", 7, 3, channels)
    # A stage has so many blocks, which put out four times their width.
    for i, (base, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        width, outputs = _scaled(base, scale), _scaled(base * 4, scale)
        for j in range(blocks):
            name = f"stage{i}/block{j}"
            add(f"{name}/1", 1, channels, width)
            add(f"{name}/2", 3, width, width)
            add(f"{name}/3", 1, width, outputs)
            if j == 0:
                add(f"{name}/shortcut", 1, channels, outputs)
            channels = outputs
    classes = _scaled(1000, scale)
    shapes["head/kernel"] = (channels, classes)
    shapes["head/bias"] = (classes,)
    return shapes


def gpt2(scale: float = 1.0) -> Shapes:
    """GPT-2, the small one: 148 tensors, 124,439,808 parameters.

    Args:
      scale: of the width and the vocabulary.

    Example:
      >>> elements(gpt2())
      124439808
    """
    width, words = _scaled(768, scale), _scaled(50257, scale)
    shapes: Shapes = {"words": (words, width), "places": (1024, width)}

    def norm(name: str) -> None:
        shapes[f"{name}/scale"] = shapes[f"{name}/bias"] = (width,)

    def dense(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}/kernel"] = (inputs, outputs)
        shapes[f"{name}/bias"] = (outputs,)

    for i in range(12):
        norm(f"block{i}/norm0")
        dense(f"block{i}/queries_keys_values", width, 3 * width)
        dense(f"block{i}/heads", width, width)
        norm(f"block{i}/norm1")
        dense(f"block{i}/up", width, 4 * width)
        dense(f"block{i}/down", 4 * width, width)
    norm("norm")
    return shapes


def flat(scale: float = 1.0) -> Shapes:
    """As many parameters as `resnet50`, in one vector."""
    return {"w": (elements(resnet50(scale)),)}


TREES: dict[str, Callable[[float], Shapes]] = {
    "flat": flat,
    "gpt2": gpt2,
    "resnet50": resnet50,
}


def named_tree(name: str, scale: float = 1.0) -> Shapes:
    """One of `TREES` by its name."""
    if name not in TREES:
        raise UserError(f"unknown tree {name!r}. Valid: {', '.join(TREES)}")
    return TREES[name](scale)


def elements(shapes: Shapes) -> int:
    """Number of parameters.

    Example:
      >>> elements({"a": (2, 3), "b": (4,)})
      10
    """
    return sum(math.prod(shape) for shape in shapes.values())


def _scaled(channels: int, scale: float) -> int:
    return max(1, round(channels * scale))

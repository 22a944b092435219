"""Shapes of gradients that the benchmarks exchange."""

import math

import numpy as np

__all__ = ["TREES", "cut", "elements", "flat", "resnet50", "tree"]

Shapes = dict[str, tuple[int, ...]]

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width, blocks
_EXPANSION = 4  # a block puts out so many times its width


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

    def scaled(channels: int) -> int:
        return max(1, round(channels * scale))

    channels = scaled(64)
    add("stem", 7, 3, channels)
    for i, (base, blocks) in enumerate(_STAGES):
        width, outputs = scaled(base), scaled(base * _EXPANSION)
        for j in range(blocks):
            name = f"stage{i}/block{j}"
            add(f"{name}/1", 1, channels, width)
            add(f"{name}/2", 3, width, width)
            add(f"{name}/3", 1, width, outputs)
            if j == 0:
                add(f"{name}/shortcut", 1, channels, outputs)
            channels = outputs
    classes = scaled(1000)
    shapes["head/kernel"] = (channels, classes)
    shapes["head/bias"] = (classes,)
    return shapes


def flat(scale: float = 1.0) -> Shapes:
    """As many parameters as `resnet50`, in one vector."""
    return {"w": (elements(resnet50(scale)),)}


def elements(shapes: Shapes) -> int:
    """Number of parameters.

    Example:
      >>> elements({"a": (2, 3), "b": (4,)})
      10
    """
    return sum(math.prod(shape) for shape in shapes.values())


TREES = {"flat": flat, "resnet50": resnet50}


def tree(name: str, scale: float = 1.0) -> Shapes:
    """One of `TREES` by its name."""
    if name not in TREES:
        raise ValueError(f"unknown tree {name!r}; valid: {', '.join(TREES)}")
    return TREES[name](scale)


def cut(drawn: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    """The columns of a matrix as a tree with a leading axis.

    Example:
      >>> cut(np.zeros((2, 7)), {"a": (3,), "b": (2, 2)})["b"].shape
      (2, 2, 2)
    """
    parts, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        parts[name] = drawn[:, start:stop].reshape(-1, *shape)
        start = stop
    return parts

"""Trees of gradients that the benchmarks exchange; the package has their shapes."""

import math

import numpy as np

from jaxcomp.wire.shapes import TREES, Shapes, elements, flat, named_tree, resnet50

__all__ = ["TREES", "cut", "elements", "flat", "named_tree", "resnet50"]


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

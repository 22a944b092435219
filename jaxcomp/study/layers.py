"""Layer by layer: how a method spends its bits on a tree, and what it loses where."""

from typing import NamedTuple

import jax
import numpy as np

from jaxcomp.base import Compressor, Tree
from jaxcomp.scope import Plan
from jaxcomp.study.errors import round_trip
from jaxcomp.trees import name_of, norms

__all__ = ["Layer", "layers"]


class Layer(NamedTuple):
    """One tensor of a tree."""

    name: str
    size: int
    energy: float  # its part of |x|^2
    arrived: float  # the part of its elements that are not zero after decoding
    error: float  # |x - C(x)|^2 / |x|^2 of this tensor; 0 where x is zero


def layers(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    seed: int = 0,
) -> list[Layer]:
    """Compress a tree once and look at each of its tensors.

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      seed: of the key.

    Example:
      >>> tree = {"large": np.float32([8, 6]), "small": np.float32([0.8, 0.6])}
      >>> for layer in layers(tree, "top_k(keep=0.5)", "whole_tree"):
      ...     print(layer.name, f"{layer.energy:.2f} {layer.error:.2f}")
      large 0.99 0.00
      small 0.01 1.00
    """
    decoded = round_trip(tree, compressor, scope, seed)
    lost = _squares(jax.tree.map(lambda x, y: x - y, tree, decoded))
    whole = _squares(tree)
    total = sum(whole)
    flat = jax.tree_util.tree_leaves_with_path(tree)
    arrived = jax.tree.leaves(decoded)
    return [
        Layer(
            name=name_of(path),
            size=int(np.size(x)),
            energy=whole[i] / total if total else 0.0,
            arrived=float(np.mean(np.asarray(arrived[i]) != 0)),
            error=lost[i] / whole[i] if whole[i] else 0.0,
        )
        for i, (path, x) in enumerate(flat)
    ]


def _squares(tree: Tree) -> list[float]:
    """|x|^2 of each tensor."""
    return [float(length) ** 2 for length in norms(tree)]

"""What multiplies the learning rate: with the workers, or with the batch."""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.specs import Count, build

__all__ = ["REGISTRY", "Size", "scaled_by"]


class Size(NamedTuple):
    """How large a run is."""

    workers: int
    heard: int | None  # workers that one hears, itself included; None without a graph
    batch: int  # examples of all workers in one step


def none(size: Size) -> float:
    """The rate as it is."""
    return 1.0


def linear(size: Size, base_batch_size: Count | None = None) -> float:
    """In the number of workers; or in the batch, whose rate is known for a base.

    Example:
      >>> linear(Size(4, None, 512)), linear(Size(4, None, 512), base_batch_size=256)
      (4.0, 2.0)

    References:
      Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, 2017.
    """
    return (
        float(size.workers) if base_batch_size is None else size.batch / base_batch_size
    )


def sqrt(size: Size, base_batch_size: Count | None = None) -> float:
    """The root of what `linear` is."""
    return math.sqrt(linear(size, base_batch_size))


def degree(size: Size, base_batch_size: Count | None = None) -> float:
    """In the number of workers that one hears, itself included; or in their batches.

    Example:
      >>> degree(Size(8, 3, 1024)), degree(Size(8, 3, 1024), base_batch_size=64)
      (3.0, 6.0)
    """
    if size.heard is None:
        raise UserError("this scaling is that of a graph: set topology")
    if base_batch_size is None:
        return float(size.heard)
    return size.heard * (size.batch / size.workers) / base_batch_size


REGISTRY: dict[str, Callable[..., float]] = {
    "degree": degree,
    "linear": linear,
    "none": none,
    "sqrt": sqrt,
}


def scaled_by(scaling: str, size: Size) -> float:
    """The factor of a scaling: "none", "linear", "sqrt(base_batch_size=256)", ...

    Args:
      scaling: spec string.
      size: of the run.
    """
    return build(scaling, REGISTRY, "lr_scaling", size)

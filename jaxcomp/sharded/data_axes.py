"""The axes over which a batch is divided, checked against a mesh and a method."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Axis
from jaxcomp.sharded.cuts import entry
from jaxcomp.specs import suggest

__all__ = ["batch_specs", "check_axes", "workers_of"]


def workers_of(mesh: Mesh, data: tuple[str, ...]) -> int:
    """How many workers share a batch."""
    return math.prod(mesh.shape[name] for name in data)


def check_axes(
    axis: Axis, mesh: Mesh, data: tuple[str, ...], does: str, kind: str
) -> None:
    """Refuse axes that the mesh does not have, or that the method does not name.

    Args:
      axis: of the method.
      mesh: on which it works.
      data: the axes that the caller names.
      does: what the method does over its axis, for the message.
      kind: "exchange" or "mixer".
    """
    for name in data:
        if name not in mesh.axis_names:
            hint = suggest(name, mesh.axis_names)
            raise ValueError(f"the mesh has no axis {name!r}. {hint}")
    if axis not in (data, entry(data)):
        message = (
            f"{does} over {axis!r}, and batches are divided over {entry(data)!r}: "
            f"build it by make_{kind}(..., axis={entry(data)!r}), or say axis= where "
            "you name the mesh"
        )
        raise ValueError(message)


def batch_specs(
    in_axes: Any,
    batch: tuple[Any, ...],
    mesh: Mesh,
    data: tuple[str, ...],
    own: bool = False,
) -> Any:
    """How the arguments of a loss are divided, as a prefix tree.

    Args:
      in_axes: a prefix tree of the batch with 0 and None.
      batch: the arguments.
      mesh: on which they live.
      data: the axes of the workers.
      own: whether it may hold "own", of what has an axis of workers in front.
    """
    workers = workers_of(mesh, data)

    def spec(axis: Any, argument: Any) -> P:
        if axis is None:
            return P()
        is_own = own and axis == "own"
        if axis != 0 and not is_own:
            valid = "0, 'own' and None" if own else "0 and None"
            raise ValueError(f"in_axes holds {valid}, not {axis!r}")
        for shape in map(jnp.shape, jax.tree.leaves(argument)):
            if is_own and shape[:1] != (workers,):
                message = (
                    f"an array of shape {shape} has no axis of {workers} workers in "
                    "front, as in_axes says by 'own'"
                )
                raise ValueError(message)
            if not shape or shape[0] % workers:
                message = (
                    f"an array of shape {shape} does not divide over {workers} workers "
                    "along its first axis. in_axes says None of what all workers get "
                    "whole: value_and_grad(loss_fn, in_axes=(0, None))"
                )
                raise ValueError(message)
        return P(entry(data))

    return jax.tree.map(spec, in_axes, batch, is_leaf=lambda axis: axis is None)

"""The axes over which a batch is divided, checked against a mesh and a method."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Axis
from jaxcomp.sharded.cuts import entry
from jaxcomp.specs import suggest
from jaxcomp.trees import name_of

__all__ = ["check_axes", "each_worker", "kinds_of", "workers_of"]


def workers_of(mesh: Mesh, data: tuple[str, ...]) -> int:
    """The number of workers over which a batch is divided."""
    return math.prod(mesh.shape[name] for name in data)


def check_axes(
    axis: Axis, mesh: Mesh, data: tuple[str, ...], does: str, kind: str
) -> None:
    """Refuse axes that the mesh does not have, or that the method does not name.

    Args:
      axis: of the method.
      mesh: of the arrays.
      data: the axes that the caller names.
      does: what the method does over its axis, for the message.
      kind: "exchange" or "mixer".
    """
    for name in data:
        if name not in mesh.axis_names:
            hint = suggest(name, mesh.axis_names)
            raise ValueError(f"the mesh has no axis {name!r}. {hint}")
    if axis not in (data, entry(data)):
        raise ValueError(
            f"{does} over {axis!r}, and batches are divided over {entry(data)!r}: "
            f"build it by make_{kind}(..., axis={entry(data)!r}), or say axis= where "
            "you name the mesh"
        )


def kinds_of(
    in_axes: Any,
    batch: tuple[Any, ...],
    mesh: Mesh,
    data: tuple[str, ...],
    has_own: bool = False,
) -> list[Any]:
    """For each leaf of a batch: 0 if it is divided, None if all workers get all of it.

    Args:
      in_axes: a prefix tree of the batch that says so.
      batch: the arguments.
      mesh: of the arrays.
      data: the axes of the workers.
      has_own: whether in_axes may hold "own", for arrays with a leading worker axis.
    """
    workers = workers_of(mesh, data)
    kinds = []

    def add(axis: Any, argument: Any) -> None:
        if axis not in (0, None) and not (has_own and axis == "own"):
            valid = "0, 'own' and None" if has_own else "0 and None"
            raise ValueError(f"in_axes holds {valid}, not {axis!r}")
        kinds.extend([axis] * len(jax.tree.leaves(argument)))

    # `add` fills a list, because some pytree nodes refuse leaves that are no arrays.
    jax.tree.map(add, in_axes, batch, is_leaf=lambda axis: axis is None)
    pairs, _ = jax.tree_util.tree_flatten_with_path(batch)
    for (path, x), kind in zip(pairs, kinds, strict=True):
        if kind is None or not _is_array(x):
            continue
        label = f"argument {name_of(path)} of the batch, of shape {x.shape},"
        if kind == "own" and x.shape[:1] != (workers,):
            raise ValueError(
                f"{label} has no axis of {workers} workers in front, as in_axes says "
                "by 'own'"
            )
        if not x.shape or x.shape[0] % workers:
            raise ValueError(
                f"{label} does not divide over {workers} workers along its first axis. "
                "in_axes says None of what all workers get whole, as in "
                "in_axes=(0, None)"
            )
    return kinds


def each_worker(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kinds: list[Any],
    mesh: Mesh,
    data: tuple[str, ...],
) -> Any:
    """Run a function for each worker, manual over the axes of the data alone.

    Args:
      function: of one worker; it may name the axes of the data.
      args: leaves that are no arrays, such as activation functions, are passed as they
        are.
      kinds: of their leaves, from `kinds_of`.
      mesh: of the arrays.
      data: the axes of the workers.

    Returns:
      What the function returns, with an axis of workers in front.
    """
    leaves, structure = jax.tree.flatten(args)
    arrays = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def of_worker(given: list[jax.Array]) -> Any:
        new = list(leaves)
        for place, x in zip(arrays, given, strict=True):
            new[place] = x[0] if kinds[place] == "own" else x
        found = function(*jax.tree.unflatten(structure, new))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], found)

    mapped = jax.shard_map(
        of_worker,
        mesh=mesh,
        in_specs=([P() if kinds[i] is None else P(entry(data)) for i in arrays],),
        out_specs=P(entry(data)),
        axis_names=set(data),
        check_vma=False,  # otherwise `jax.grad` would sum gradients over the workers
    )
    return mapped([leaves[i] for i in arrays])


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)

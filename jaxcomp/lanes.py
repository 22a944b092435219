"""Workers that share a device: an axis of devices, and inside it one of their lanes.

Lanes are mapped by vmap, inside the program that each device runs. What workers of one
device tell each other is arithmetic; only what crosses devices is a message.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Axis
from jaxcomp.border import axis_size
from jaxcomp.colouring import coloured

__all__ = ["Lanes", "permute_rows"]


class Lanes(NamedTuple):
    """The axis of workers of whom k share a device; d k + l is lane l of device d.

    It is a tuple of two mapped axes, as `jax.lax.psum` and `axis_index` take it. The
    functions of `jaxcomp.collectives` take it too, and those of jax for messages of
    other kinds do not.
    """

    devices: Axis
    lanes: str


def permute_rows(rows: Array, pairs: Sequence[tuple[int, int]], devices: Axis) -> Array:
    """`collectives.permute` for all workers of a device, [lanes, ...], at once.

    What crosses devices takes as few permutations of one row as possible.

    Args:
      rows: of the workers of this device.
      pairs: (source, destination) of workers, each at most once on either side.
      devices: the axis of the devices.
    """
    lanes, count = len(rows), axis_size(devices)
    place = jax.lax.axis_index(devices)
    stays = np.full((count, lanes), lanes)  # which row goes where; `lanes` is none
    crossing: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source, destination in pairs:
        (here, row), (there, to) = divmod(source, lanes), divmod(destination, lanes)
        if here == there:
            stays[here, to] = row
        else:
            crossing.setdefault((here, there), []).append((row, to))
    result = jnp.take(rows, jnp.asarray(stays)[place], 0, mode="fill", fill_value=0)
    edges = [edge for edge, moves in crossing.items() for _ in moves]
    # Whole shifts of the devices first, as those of a ring are.
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % count, edge[0]))
    for turn in coloured(edges, count).T if edges else ():
        sent, taken = np.zeros(count, int), np.full(count, lanes)
        links = [(here, int(there)) for here, there in enumerate(turn) if there >= 0]
        for here, there in links:
            sent[here], taken[there] = crossing[here, there].pop(0)
        arrived = jax.lax.ppermute(rows[jnp.asarray(sent)[place]], devices, links)
        result = result.at[jnp.asarray(taken)[place]].set(arrived, mode="drop")
    return result

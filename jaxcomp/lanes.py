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


def permute_rows(
    rows: Array, slots: Sequence[Sequence[tuple[int, int]]], devices: Axis
) -> Array:
    """`collectives.permute_each` for all workers of a device at once.

    What crosses devices takes as few permutations of one row as possible: a row that
    several workers of another device await goes there once.

    Args:
      rows: of the workers of this device, [lanes, ...].
      slots: (source, destination) of workers, each at most once on either side.
      devices: the axis of the devices.

    Returns:
      What arrives in each slot, [lanes, slots, ...].
    """
    lanes, count = len(rows), axis_size(devices)
    place = jax.lax.axis_index(devices)
    # Where each slot of a worker is among the own rows and those that arrive.
    origin = np.full((count, lanes, len(slots)), -1)
    awaited: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
    for slot, pairs in enumerate(slots):
        for source, destination in pairs:
            (here, row), (there, to) = divmod(source, lanes), divmod(destination, lanes)
            if here == there:
                origin[here, to, slot] = row
            else:
                of_link = awaited.setdefault((here, there), {})
                of_link.setdefault(row, []).append((to, slot))
    edges = [edge for edge, moves in awaited.items() for _ in moves]
    # Whole shifts of the devices first, as those of a ring are.
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % count, edge[0]))
    pool = [rows]
    for number, turn in enumerate(coloured(edges, count).T if edges else (), lanes):
        sent = np.zeros(count, int)
        links = [(here, int(there)) for here, there in enumerate(turn) if there >= 0]
        for here, there in links:
            sent[here], moves = awaited[here, there].popitem()
            for move in moves:
                origin[there, *move] = number
        row = rows[jnp.asarray(sent)[place]]
        pool.append(jax.lax.ppermute(row, devices, links)[None])
    every = jnp.concatenate(pool)
    found = np.where(origin < 0, len(every), origin)
    return jnp.take(every, jnp.asarray(found)[place], 0, mode="fill", fill_value=0)

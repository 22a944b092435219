"""Read the groups of devices of a collective, in each notation of XLA.

    {{0,2},{1,3}}                     listed
    {}                                all in one group
    [2,4]<=[8]                        0 to 7, cut into two groups of four
    [2,2]<=[2,2]T(1,0)                the same after a transposition
    mesh['a'=2,'b'=4] {'b'}           devices that differ along axis b alone
    mesh['a'=8] {'a':(2)4}            with a = 2 x 4, along the second factor
    mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}

The numbers are those of replicas, partitions or devices: the attributes of the
instruction say which. A program has replicas x partitions devices, and in programs of
jax one of the two counts is 1.
"""

import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxcomp.wire.found import Groups

__all__ = ["NAMES_GROUPS", "Devices", "read_groups"]


class Devices(NamedTuple):
    """Devices that run a program; device r P + p is replica r and partition p."""

    replicas: int
    partitions: int  # P


NAMES_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=")
_LISTED = re.compile(
    r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d, ]*\}(?:, ?)?)*)\}"
)
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(
    r"replica_groups=(?:maximal_)?mesh\[([^\]]*)\]"
    r"(?:, device_ids=\((.*?)\))? \{([^}]*)\}"
)
_PART_OF_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
# If these have a channel, groups are of partitions; in other kinds, of replicas, each
# with all of its partitions.
_OF_PARTITIONS = {
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
}


def read_groups(line: str, kind: str, devices: Devices) -> Groups:
    """The groups of an instruction, as places among the program's devices.

    Args:
      line: text of the instruction.
      kind: of the collective.
      devices: of the program.

    Raises:
      ValueError, KeyError: the line has no groups, or in an unknown notation.

    Example:
      >>> line = "replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true"
      >>> read_groups(line, "all-reduce", Devices(1, 4))
      ((0, 2), (1, 3))
    """
    width = devices.partitions
    every_device = range(devices.replicas * width)
    replicas, partitions = range(devices.replicas), range(width)
    if "use_global_device_ids=true" in line:
        return _named(line, every_device)
    if "channel_id=" not in line:
        groups = _named(line, replicas)
        return tuple(
            tuple(r * width + p for r in g) for g in groups for p in partitions
        )
    if kind in _OF_PARTITIONS:
        groups = _named(line, partitions)
        return tuple(tuple(r * width + p for p in g) for g in groups for r in replicas)
    groups = _named(line, replicas)
    return tuple(tuple(r * width + p for r in g for p in partitions) for g in groups)


def _named(line: str, everybody: Iterable[int]) -> Groups:
    """The groups that a line names; `{}` is everybody, or an empty permutation."""
    if listed := _LISTED.search(line):
        groups = tuple(map(_numbers, re.findall(r"\{([^}]*)\}", listed[1])))
        is_all = not groups and listed[0].startswith("replica_groups")
        return (tuple(everybody),) if is_all else groups
    if iota := _IOTA.search(line):
        return _rows(_places(iota[2]).reshape(_numbers(iota[1])))
    if mesh := _MESH.search(line):
        return _along_axes(*mesh.groups())
    raise ValueError("no groups in a notation that is known")


def _along_axes(axes: str, order: str | None, chosen: str) -> Groups:
    """Groups along axes of a mesh, or along factors of them.

    Args:
      axes: such as `'a'=2,'b'=8`.
      order: the places in the order of the mesh, where it is not 0, 1, 2, ...
      chosen: such as `'a','b':(2)4`: of b = 2 x 4 x 1 the second factor.
    """
    sizes = {name: int(n) for name, n in re.findall(r"'([^']*)'=(\d+)", axes)}
    parts = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in _PART_OF_AXIS.findall(chosen)
    ]
    factors = []  # (axis, product of its factors before, own size)
    for name, size in sizes.items():
        borders = {1, size}
        for axis, before, own in parts:
            borders |= {before, before * own} if axis == name else set()
        for low, high in itertools.pairwise(sorted(borders)):
            factors.append((name, low, high // low))
    inside = [factors.index(part) for part in parts if part[2] > 1]
    outside = [i for i in range(len(factors)) if i not in inside]
    dims = [size for _, _, size in factors]
    table = _places(order or f"[{math.prod(dims)}]").reshape(dims)
    table = table.transpose(outside + inside)
    return _rows(table.reshape(-1, math.prod(dims[i] for i in inside)))


def _places(text: str) -> np.ndarray:
    """Of `3,0,1,2` these; of `[2,4]T(1,0)` 0 to 7 as a table of 2 x 4, transposed."""
    counted = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not counted:
        return np.array(_numbers(text))
    dims = _numbers(counted[1])
    table = np.arange(math.prod(dims)).reshape(dims)
    return table.transpose(_numbers(counted[2])) if counted[2] else table


def _rows(table: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in table.tolist())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())

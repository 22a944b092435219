"""Sum up the bytes of collectives: by kind, by mesh axis, and on network links."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.trees import wide_spec
from jaxcomp.wire.program import KINDS, PAIRWISE, Collective, collectives

AxisNames = str | tuple[str, ...]  # one mesh axis, or several


@overload
def collective_bytes(program: Any) -> dict[str, int]: ...
@overload
def collective_bytes(
    program: Any, *, by_axis: Any
) -> dict[AxisNames, dict[str, int]]: ...
def collective_bytes(program: Any, *, by_axis: Any = None) -> dict[Any, Any]:
    """Bytes that each worker sends in one execution of a program, by collective.

    Args:
      program: a compiled program (`jitted.lower(...).compile()`), its text, or a list
        of `Collective`.
      by_axis: the mesh that the program was compiled for. Bytes are then split by the
        axes along which they are sent.

    Returns:
      {kind: bytes of the operands}. Groups of one worker send nothing. With `by_axis`
      {axis: {kind: bytes}}; for messages that are sent along several axes at once, axis
      is a tuple in the order of the mesh. Axes without messages are left out.

    Raises:
      WireError: a collective cannot be read, or is in a loop of unknown length. The
        message shows its line.
      ValueError: the mesh has another number of devices than the program.

    Example:
      >>> program = (
      ...     "HloModule main, num_partitions=8\\n"
      ...     "ENTRY %main {\\n"
      ...     "  %x = u32[8]{0} parameter(0)\\n"
      ...     "  %g = u32[4,8]{1,0} all-gather(%x), channel_id=1, "
      ...     "replica_groups=[2,4]<=[8], use_global_device_ids=true\\n"
      ...     "}"
      ... )
      >>> collective_bytes(program)
      {'all-gather': 32}
      >>> mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
      >>> collective_bytes(program, by_axis=mesh)
      {'model': {'all-gather': 32}}
    """
    found = program if isinstance(program, list) else collectives(program)
    if by_axis is None:
        return _by_kind(found)
    of_axes: dict[AxisNames, list[Collective]] = defaultdict(list)
    for collective in found:
        of_axes[_axes_of(collective, by_axis)].append(collective)
    return {axes: _by_kind(theirs) for axes, theirs in of_axes.items()}


def link_bytes(found: Iterable[Collective], per_host: int = 1) -> float:
    """Bytes that leave the worker, or the host of several, which sends the most.

    all-reduce: 2 (N-1)/N n; all-gather: (N-1) n; reduce-scatter and all-to-all:
    (N-1)/N n; permute and broadcast: n; where n are the operand's bytes and N is the
    number of workers in a group. Of a ring one edge leaves a host, whichever workers
    are neighbours in it. Without groups there is one of all workers, or a permutation
    to the next host.

    Args:
      found: collectives, as `collectives` and `traced_collectives` return them.
      per_host: workers of one host, which are neighbours in the order of devices.

    Example:
      >>> link_bytes([Collective("all-gather", nbytes=10, workers=4)])
      30.0
    """
    total: dict[int, float] = defaultdict(float)
    for collective in found:
        for host, nbytes in _of_hosts(collective, per_host):
            total[host] += nbytes * collective.times
    return float(max(total.values(), default=0.0))


def exact_bytes(tree: Any, workers: int) -> float:
    """Bytes that leave each worker if `exact` averages a tree in a ring.

    2 (N-1)/N n, where n are the bytes of the tree in at least float32. With any number
    of workers on a host, as many leave each host.

    Example:
      >>> exact_bytes(jnp.zeros(8, jnp.bfloat16), workers=4)
      48.0
    """
    return KINDS["all-reduce"](workers) * dense_bytes(wide_spec(tree))


def dense_bytes(tree: Any) -> int:
    """Bytes of a tree of arrays or specs that is sent without compression.

    Example:
      >>> dense_bytes({"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)})
      64
    """
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in leaves)


def _by_kind(found: Iterable[Collective]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for collective in found:
        total[collective.kind] += collective.nbytes * collective.times
    return dict(total)


def _of_hosts(collective: Collective, per_host: int) -> Iterator[tuple[int, float]]:
    """The hosts that send, each as often as it does, and the bytes that leave it."""
    kind, nbytes, size = collective.kind, collective.nbytes, collective.workers
    if kind == "collective-permute":
        shifted = [(i, (i + per_host) % size) for i in range(size)]
        for source, target in collective.groups or shifted:
            if source // per_host != target // per_host:
                yield source // per_host, nbytes
        return
    for group in collective.groups or (tuple(range(size)),):
        members, count = Counter(place // per_host for place in group), len(group)
        for host, mine in members.items() if len(members) > 1 else ():
            if kind in PAIRWISE:
                yield host, nbytes * mine * (count - mine) / count
            else:
                yield host, nbytes * KINDS[kind](count)


def _axes_of(collective: Collective, mesh: Any) -> AxisNames:
    """The axes of a mesh along which members of a group differ."""
    places = [place for group in collective.groups for place in group]
    # A permutation may leave workers out; in everything else each has a group.
    fits = max(places, default=mesh.size) < mesh.size and (
        collective.kind == "collective-permute" or len(places) == mesh.size
    )
    if not fits:
        message = (
            f"{collective.kind} between {collective.groups} is not among the "
            f"{mesh.size} devices of by_axis={dict(mesh.shape)}: give the mesh that "
            "the program was compiled for"
        )
        raise ValueError(message)
    sizes = tuple(mesh.shape.values())
    differ = np.any(
        [
            np.ptp(np.array(np.unravel_index(group, sizes)), axis=1) > 0
            for group in collective.groups
        ],
        axis=0,
    )
    names = [name for name, moves in zip(mesh.shape, differ, strict=True) if moves]
    return names[0] if len(names) == 1 else tuple(names)

"""The collectives of a compiled program, and their bytes: by kind, axis and link."""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.core.trees import wide_spec
from jaxcomp.wire import program as hlo
from jaxcomp.wire.program import KINDS, WireError

PAIRWISE = {"all-to-all", "ragged-all-to-all"}  # each to each: no ring forwards them

Groups = tuple[tuple[int, ...], ...]


class Collective(NamedTuple):
    """One collective operation of a program."""

    kind: str  # a name in KINDS
    nbytes: int  # that one worker hands over each time it is run
    workers: int  # size of the largest group
    times: int = 1  # how often it is run in one execution of the program
    # The devices of each group, as places among the program's devices; for a
    # permutation the pairs of source and target.
    groups: Groups = ()
    tensors: int = 1  # that are handed over together, as parts of nbytes


def largest(groups: Groups) -> int:
    """Members of the largest group; 1 if no group sends anything."""
    moves = any(len(set(group)) > 1 for group in groups)
    return max(map(len, groups)) if moves else 1


class Devices(NamedTuple):
    """Devices that run a program; device r P + p is replica r and partition p."""

    replicas: int
    partitions: int  # P


_SHOWN = 600  # characters of a line that cannot be read
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
        for host, leaving in _of_hosts(collective, per_host):
            total[host] += leaving * collective.times
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
    kind, given, size = collective.kind, collective.nbytes, collective.workers
    if kind == "collective-permute":
        shifted = [(i, (i + per_host) % size) for i in range(size)]
        for source, target in collective.groups or shifted:
            if source // per_host != target // per_host:
                yield source // per_host, given
        return
    for group in collective.groups or (tuple(range(size)),):
        members, count = Counter(place // per_host for place in group), len(group)
        for host, mine in members.items() if len(members) > 1 else ():
            if kind in PAIRWISE:
                yield host, given * mine * (count - mine) / count
            else:
                yield host, given * KINDS[kind](count)


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


def collectives(program: Any) -> list[Collective]:
    """All collectives of a compiled program, in the order of the text.

    Args:
      program: `jitted.lower(...).compile()`, or its text.

    Raises:
      WireError: a collective cannot be read; the message shows its line.
    """
    text = hlo.program_text(program)
    devices = _devices(hlo.header_of(text))
    bodies = hlo.computations(text)
    times = _executions(bodies)
    result = []
    for name, lines in bodies.items():
        shapes = _shapes(lines)
        for line in lines:
            collective = _collective(line, shapes, devices)
            if collective is None or collective.workers == 1:
                continue
            if name not in times:
                raise _unreadable(line, f"nothing that is known runs {name}")
            count = times[name]
            if count is None:
                message = (
                    f"{collective.kind} runs in a loop of unknown length ({name}); "
                    "take the collective out of the loop, or use a scan"
                )
                raise WireError(f"{message}: {_shown(line)}")
            if count:
                result.append(collective._replace(times=count))
    return result


def _devices(header: str) -> Devices:
    """How many devices run the program, from its first line."""
    counts = [
        re.search(rf"\b{name}=(\d+)", header)
        for name in ("replica_count", "num_partitions")
    ]
    return Devices(*(int(count[1]) if count else 1 for count in counts))


def _executions(bodies: dict[str, list[str]]) -> dict[str, int | None]:
    """How often each computation runs in one execution; None: it is not known."""
    times: dict[str, int | None] = {}

    def visit(name: str, count: int | None) -> None:
        before = times.get(name, 0)
        times[name] = None if count is None or before is None else before + count
        for line in bodies[name]:
            inner = count
            if " while(" in line:
                trips = hlo.trip_count(line)
                inner = None if trips is None or count is None else count * trips
            for callee in hlo.called(line):
                if callee in bodies:
                    visit(callee, inner)

    visit(hlo.ENTRY, 1)
    return times


def _shapes(lines: list[str]) -> dict[str, str]:
    """Name of each instruction -> text of the shape of its result."""
    return {found.name: found.shape for found in map(hlo.parsed, lines) if found}


def _collective(
    line: str, shapes: dict[str, str], devices: Devices
) -> Collective | None:
    """The collective of an instruction line, or None for any other instruction."""
    instruction = hlo.parsed(line)
    kind = instruction.operation.removesuffix("-start") if instruction else ""
    if not instruction or kind not in KINDS:
        if NAMES_GROUPS.search(line) and not hlo.waits(line):
            raise _unreadable(line, f"known are {', '.join(KINDS)}")
        return None
    given = hlo.operands(instruction.rest)
    if kind == "ragged-all-to-all":  # the other operands are offsets and sizes
        given = given[:1]
    if not given:
        raise _unreadable(line, "it has no operands")
    try:
        sizes = [_nbytes(operand.shape or shapes[operand.name]) for operand in given]
        groups = read_groups(line, kind, devices)
    except KeyError as error:
        raise _unreadable(line, f"nothing here is named {error}") from error
    except ValueError as error:
        raise _unreadable(line, str(error)) from error
    # Only all-reduces are combined; other operands are the parts of one message.
    tensors = len(sizes) if kind == "all-reduce" else 1
    workers = largest(groups)
    return Collective(kind, sum(sizes), workers, groups=groups, tensors=tensors)


def _nbytes(shape: str) -> int:
    if "[" not in shape:
        raise ValueError(f"{shape} is no shape")
    return hlo.nbytes(shape)


def _unreadable(line: str, reason: str) -> WireError:
    return WireError(f"cannot read a collective ({reason}): {_shown(line)}")


def _shown(line: str) -> str:
    """The beginning of a line, without its metadata."""
    return line.strip().split(", metadata=")[0][:_SHOWN]


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
    table = np.arange(devices.replicas * devices.partitions).reshape(devices)
    if "use_global_device_ids=true" in line:
        return _named(line, table.ravel().tolist())
    has_channel = "channel_id=" in line
    if has_channel and kind in _OF_PARTITIONS:
        groups = _named(line, range(devices.partitions))
        return _rows([row[[*group]] for group in groups for row in table])
    groups = _named(line, range(devices.replicas))
    if has_channel:
        return _rows([table[[*group]].ravel() for group in groups])
    return _rows([column[[*group]] for group in groups for column in table.T])


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


def _rows(table: Iterable[np.ndarray]) -> Groups:
    return tuple(tuple(row.tolist()) for row in table)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())

"""The collectives of a compiled program, read from its text."""

import itertools
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

# Bytes that leave a worker for each byte that it hands to the collective, if this is
# run as a ring algorithm of n workers.
KINDS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}

PAIRWISE = {"all-to-all", "ragged-all-to-all"}  # each to each: no ring forwards them

Groups = tuple[tuple[int, ...], ...]


class WireError(ValueError):
    """A collective of a program whose bytes cannot be determined."""


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


ENTRY = "ENTRY"  # stands for the name of the computation with which a program begins
SHOWN = 300  # characters at each end of a line that cannot be read
# Name of the result, its shape, the operation, and the rest of the line.
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)$"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(
    r"\b(?:to_apply|calls|body|condition|true_computation|false_computation)="
    r"%?([\w.\-]+)"
)
_SEVERAL_CALLED = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")


class Instruction(NamedTuple):
    """One instruction of a program."""

    name: str
    shape: str  # of the result
    operation: str
    rest: str  # the operands, and after the closing bracket the attributes


class Operand(NamedTuple):
    """What an instruction is given."""

    name: str
    shape: str  # "" where the text does not repeat it


def program_text(program: Any) -> str:
    """The text of a compiled program; equinox wraps it in an object of its own.

    Args:
      program: `jitted.lower(...).compile()`, or its text.
    """
    if isinstance(program, str):
        return program
    if isinstance(program, jax.stages.Wrapped):
        message = (
            "a function is not compiled yet: collective_bytes takes "
            "function.lower(*args).compile()"
        )
        raise WireError(message)
    return getattr(program, "compiled", program).as_text()


def header_of(text: str) -> str:
    """The first line of a compiled program.

    Raises:
      WireError: the text is no compiled program.
    """
    header = re.search(r"^HloModule .*$", text, re.MULTILINE)
    if not header or "\nENTRY " not in text:
        message = (
            "not the text of a compiled program, which begins with HloModule and has "
            f"an ENTRY: {text.strip()[:SHOWN]!r}\nA program is compiled by "
            "jitted.lower(...).compile()"
        )
        raise WireError(message)
    return header[0]


def computations(text: str) -> dict[str, list[str]]:
    """Name -> instruction lines of each computation; `ENTRY` names the first to run.

    Example:
      >>> computations("HloModule m\\n\\nENTRY %main {\\n  ROOT %x = f32[] add(%y)\\n}")
      {'ENTRY': ['  ROOT %x = f32[] add(%y)']}
    """
    bodies: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" ") and "HloModule" not in line:
            is_entry = line.startswith("ENTRY")
            name = line.removeprefix("ENTRY").strip().lstrip("%").split(" ")[0]
            current = bodies.setdefault(ENTRY if is_entry else name, [])
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(re.sub(r"/\*.*?\*/", "", line))  # /*index=5*/ in long tuples
    return bodies


def parsed(line: str) -> Instruction | None:
    """The instruction of a line, or None where the line has none."""
    found = _INSTRUCTION.match(line)
    return Instruction(*found.groups()) if found else None


def called(line: str) -> list[str]:
    """Names of the computations that an instruction runs.

    The end of an asynchronous operation names what its start has run; it runs nothing.
    """
    names = _CALLED.findall(line)
    for listed in _SEVERAL_CALLED.findall(line):
        names += [name.strip().lstrip("%") for name in listed.split(",")]
    return [] if names and waits(line) else names


def waits(line: str) -> bool:
    """Whether a line ends an asynchronous operation; its start counts already."""
    instruction = parsed(line)
    return bool(instruction) and instruction.operation.endswith(("-done", "-update"))


def trip_count(line: str) -> int | None:
    """How often the body of a loop runs, or None where the program does not say."""
    trips = _TRIPS.search(line)
    return int(trips[1]) if trips else None


def operands(rest: str) -> list[Operand]:
    """The operands of an operation.

    Args:
      rest: of an `Instruction`.

    Example:
      >>> operands("f32[8,2]{1,0:T(8,128)} %a, %b), dimensions={0}")
      [Operand(name='a', shape='f32[8,2]{1,0:T(8,128)}'), Operand(name='b', shape='')]
    """
    found, depth = [""], 0
    for char in rest:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            break
        if char == "," and depth == 0:
            found.append("")
        else:
            found[-1] += char
    parts = (text.strip().rpartition(" ") for text in found if text.strip())
    return [Operand(name.lstrip("%"), shape.strip()) for shape, _, name in parts]


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


_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


def collectives(program: Any) -> list[Collective]:
    """All collectives of a compiled program, in the order of the text.

    Args:
      program: `jitted.lower(...).compile()`, or its text.

    Raises:
      WireError: a collective cannot be read; the message shows its line.
    """
    text = program_text(program)
    devices = _devices(header_of(text))
    bodies = computations(text)
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
                trips = trip_count(line)
                inner = None if trips is None or count is None else count * trips
            for callee in called(line):
                if callee in bodies:
                    visit(callee, inner)

    visit(ENTRY, 1)
    return times


def _shapes(lines: list[str]) -> dict[str, str]:
    """Name of each instruction -> text of the shape of its result."""
    return {found.name: found.shape for found in map(parsed, lines) if found}


def _collective(
    line: str, shapes: dict[str, str], devices: Devices
) -> Collective | None:
    """The collective of an instruction line, or None for any other instruction."""
    instruction = parsed(line)
    kind = instruction.operation.removesuffix("-start") if instruction else ""
    if not instruction or kind not in KINDS:
        if NAMES_GROUPS.search(line) and not waits(line):
            raise _unreadable(line, f"known are {', '.join(KINDS)}")
        return None
    given = operands(instruction.rest)
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
    moves = any(len(set(group)) > 1 for group in groups)
    workers = max(len(group) for group in groups) if moves else 1
    # Only all-reduces are combined; other operands are the parts of one message.
    tensors = len(sizes) if kind == "all-reduce" else 1
    return Collective(kind, sum(sizes), workers, groups=groups, tensors=tensors)


def _nbytes(shape: str) -> int:
    """Bytes of a shape such as `f32[2,3]{1,0}` or a tuple of them."""
    arrays = _ARRAY.findall(shape)
    if not arrays:
        raise ValueError(f"{shape} is no shape")
    total = 0
    for dtype, dims in arrays:
        digits = re.search(r"\d+", dtype)
        if dtype not in _BITS and not digits:
            raise ValueError(f"the width of {dtype} is not known")
        width = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
        total += -(-width * math.prod(int(d) for d in dims.split(",") if d) // 8)
    return total


def _unreadable(line: str, reason: str) -> WireError:
    return WireError(f"cannot read a collective ({reason}): {_shown(line)}")


def _shown(line: str) -> str:
    """A line without its metadata; of a long line the beginning and the end."""
    text = line.strip().split(", metadata=")[0]
    if len(text) <= 2 * SHOWN:
        return text
    return f"{text[:SHOWN]} ... {text[-SHOWN:]}"

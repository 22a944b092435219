"""Find the collectives of a compiled program in its text.

A line that looks like a collective but cannot be read is an error, because leaving out
its bytes would make a method look better than it is.
"""

import math
import re
from typing import Any

from jaxcomp.wire.found import KINDS, Collective, WireError
from jaxcomp.wire.groups import NAMES_GROUPS, Devices, read_groups
from jaxcomp.wire.text import (
    ENTRY,
    SHOWN,
    called,
    computations,
    header_of,
    operands,
    parsed,
    program_text,
    trip_count,
    waits,
)

__all__ = ["collectives"]

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

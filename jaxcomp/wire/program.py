"""Find the collectives of a compiled program in its text.

A line that looks like a collective but cannot be read is an error, because leaving out
its bytes would make a method look better than it is.
"""

import math
import re
from typing import Any

import jax

from jaxcomp.wire.found import KINDS, Collective, WireError
from jaxcomp.wire.groups import NAMES_GROUPS, Devices, read_groups

__all__ = ["collectives"]

# Name of the result, its shape, the operation, and the rest of the line.
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)$"
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_SHOWN = 300  # characters at each end of a line that cannot be read


def collectives(program: Any) -> list[Collective]:
    """All collectives of a compiled program, in the order of the text.

    Args:
      program: `jitted.lower(...).compile()`, or its text.

    Raises:
      WireError: a collective cannot be read; the message shows its line.
    """
    text = program if isinstance(program, str) else _text_of(program)
    devices = _devices(text)
    bodies = _computations(text)
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


def _text_of(program: Any) -> str:
    """The text of a compiled program; equinox wraps it in an object of its own."""
    if isinstance(program, jax.stages.Wrapped):
        message = (
            "a function is not compiled yet: collective_bytes takes "
            "function.lower(*args).compile()"
        )
        raise WireError(message)
    return getattr(program, "compiled", program).as_text()


def _devices(text: str) -> Devices:
    """How many devices run the program, from its first line."""
    header = re.search(r"^HloModule .*$", text, re.MULTILINE)
    if not header or "\nENTRY " not in text:
        message = (
            "not the text of a compiled program, which begins with HloModule and has "
            f"an ENTRY: {text.strip()[:_SHOWN]!r}\nA program is compiled by "
            "jitted.lower(...).compile()"
        )
        raise WireError(message)
    counts = [
        re.search(rf"\b{name}=(\d+)", header[0])
        for name in ("replica_count", "num_partitions")
    ]
    return Devices(*(int(count[1]) if count else 1 for count in counts))


def _computations(text: str) -> dict[str, list[str]]:
    """Name -> instruction lines; the entry computation is named "ENTRY"."""
    bodies: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" ") and "HloModule" not in line:
            entry = line.startswith("ENTRY")
            name = line.removeprefix("ENTRY").strip().lstrip("%").split(" ")[0]
            current = bodies.setdefault("ENTRY" if entry else name, [])
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(re.sub(r"/\*.*?\*/", "", line))  # /*index=5*/ in long tuples
    return bodies


def _executions(bodies: dict[str, list[str]]) -> dict[str, int | None]:
    """How often each computation runs in one execution; None: it is not known."""
    times: dict[str, int | None] = {}

    def visit(name: str, count: int | None) -> None:
        before = times.get(name, 0)
        times[name] = None if count is None or before is None else before + count
        for line in bodies[name]:
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            loop = " while(" in line
            inner = count
            if loop:
                inner = count * int(trips[1]) if trips and count is not None else None
            for callee in _callees(line):
                if callee in bodies:
                    visit(callee, inner)

    visit("ENTRY", 1)
    return times


def _callees(line: str) -> list[str]:
    """Names of the computations that an instruction runs."""
    names = re.findall(r"(?:to_apply|calls|body|condition)=%?([\w.\-]+)", line)
    several = r"(?:branch|called)_computations=\{([^}]*)\}"
    for listed in re.findall(several, line):
        names += [name.strip().lstrip("%") for name in listed.split(",")]
    pair = r"(?:true|false)_computation=%?([\w.\-]+)"
    names += re.findall(pair, line)
    return [] if names and _waits(line) else names


def _waits(line: str) -> bool:
    """Whether a line ends an asynchronous operation; its start counts already."""
    instruction = _INSTRUCTION.match(line)
    return bool(instruction) and instruction[3].endswith(("-done", "-update"))


def _shapes(lines: list[str]) -> dict[str, str]:
    """Name of each instruction -> text of the shape of its result."""
    return {found[1]: found[2] for found in map(_INSTRUCTION.match, lines) if found}


def _collective(
    line: str, shapes: dict[str, str], devices: Devices
) -> Collective | None:
    """The collective of an instruction line, or None for any other instruction."""
    instruction = _INSTRUCTION.match(line)
    kind = instruction[3].removesuffix("-start") if instruction else ""
    if not instruction or kind not in KINDS:
        if NAMES_GROUPS.search(line) and not _waits(line):
            raise _unreadable(line, f"known are {', '.join(KINDS)}")
        return None
    operands = _operands(instruction[4])
    if kind == "ragged-all-to-all":  # the other operands are offsets and sizes
        operands = operands[:1]
    try:
        nbytes = sum(_nbytes(shapes[name]) for name in operands)
        groups = read_groups(line, kind, devices)
    except (KeyError, ValueError) as error:
        raise _unreadable(line, str(error)) from error
    moves = any(len(set(group)) > 1 for group in groups)
    workers = max(len(group) for group in groups) if moves else 1
    return Collective(kind, nbytes, workers, groups=groups)


def _operands(rest: str) -> list[str]:
    """Names of the operands of an operation, which may be listed with their shapes.

    Example:
      >>> _operands("f32[8,2]{1,0:T(8,128)} %a, %b), dimensions={0}")
      ['a', 'b']
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
    return [text.split()[-1].lstrip("%") for text in found if text.strip()]


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
    if len(text) <= 2 * _SHOWN:
        return text
    return f"{text[:_SHOWN]} ... {text[-_SHOWN:]}"

"""Cut the text of a compiled program into computations and instructions.

XLA prints an instruction in several forms: with or without `%` before names, with or
without the shapes of operands, and with tilings in shapes, as in
`f32[8,2]{1,0:T(8,128)S(1)}`.
"""

import re
from typing import Any, NamedTuple

import jax

from jaxcomp.wire.found import WireError

__all__ = [
    "ENTRY",
    "SHOWN",
    "Instruction",
    "Operand",
    "called",
    "computations",
    "header_of",
    "operands",
    "parsed",
    "program_text",
    "trip_count",
    "waits",
]

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

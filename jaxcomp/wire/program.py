"""What a compiled program runs, read from its text: kernels, loops, memory, order."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from jaxcomp.core.errors import UserError

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

ENTRY = "ENTRY"  # stands for the name of the computation with which a program begins
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


class WireError(UserError):
    """A collective of a program whose bytes cannot be determined."""


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
            f"an ENTRY: {text.strip()[:300]!r}\nA program is compiled by "
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


_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


def nbytes(shape: str) -> int:
    """Bytes of an array or a tuple, as a program writes its shape.

    Example:
      >>> nbytes("(f32[2,3]{1,0}, pred[8])"), nbytes("u4[8]"), nbytes("token[]")
      (32, 4, 0)
    """
    total = 0
    for dtype, sides in _ARRAY.findall(shape):
        digits = re.search(r"\d+", dtype)
        if dtype not in _BITS and not digits:
            raise ValueError(f"the width of {dtype} is not known")
        width = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
        total += -(-width * math.prod(int(n) for n in sides.split(",") if n) // 8)
    return total


# Instructions for which nothing is started: they name memory that exists already.
FREE = {
    *("add-dependency", "after-all", "bitcast", "constant", "get-tuple-element"),
    *("opt-barrier", "parameter", "tuple"),
}
_PRODUCTS = {"dot": "product", "convolution": "convolution"}
_LIBRARIES = {
    "__cudnn$conv": "convolution",
    "__cublas$": "product",
    "__triton_gemm": "product",
}


class Event(NamedTuple):
    """One piece of work that the program starts, or a collective that it waits for."""

    # A collective of `wire.KINDS`, with "-start" and "-done" if the program goes on in
    # between; "convolution", "product", "loop", or "other".
    kind: str
    name: str  # of the instruction
    source: str  # what it was traced from, such as "jit(step)/transpose(jvp(f))/dot"

    @property
    def is_backward(self) -> bool:
        """Whether it computes a gradient."""
        return "transpose(" in self.source


class Overlap(NamedTuple):
    """How much of the backward pass can run beside the first message."""

    behind: int  # products and convolutions that start after the first collective
    products: int  # all products and convolutions of the backward pass


def overlap(order: Iterable[Event]) -> Overlap:
    """Count the backward pass before and after the first collective's start.

    Example:
      >>> gradient = "transpose(jvp(f))/dot_general"
      >>> events = [
      ...     Event("product", "a", gradient),
      ...     Event("all-gather-start", "b", ""),
      ...     Event("product", "c", gradient),
      ...     Event("all-gather-done", "d", ""),
      ... ]
      >>> overlap(events)
      Overlap(behind=1, products=2)
    """
    has_begun, behind, products = False, 0, 0
    for event in order:
        has_begun |= event.kind.removesuffix("-start") in KINDS
        if event.kind in _PRODUCTS.values() and event.is_backward:
            behind += has_begun
            products += 1
    return Overlap(behind, products)


def launches(bodies: dict[str, list[str]]) -> int:
    """Kernels and copies that the host starts, those of loops times their rounds.

    One round is counted of a loop of unknown length.

    Args:
      bodies: from `computations`.
    """
    return _total(ENTRY, bodies, lambda part, shapes: 1)


def order_of(bodies: dict[str, list[str]], name: str = ENTRY) -> Iterator[Event]:
    """What a program starts, in this order; a loop is one event.

    Args:
      bodies: from `computations`, of a program that XLA has scheduled.
      name: of the computation.
    """
    for line in bodies[name]:
        found = parsed(line)
        if not found or found.operation in FREE:
            continue
        if found.operation in ("call", "conditional"):
            for callee in called(line):
                yield from order_of(bodies, callee)
            continue
        kind = _kind(found, line, bodies)
        if kind != "wait":
            source = line.partition('op_name="')[2].partition('"')[0]
            yield Event(kind, found.name, source)


def _kind(found: Instruction, line: str, bodies: dict[str, list[str]]) -> str:
    operation = found.operation
    if operation.removesuffix("-start").removesuffix("-done") in KINDS:
        return operation
    if operation == "while":
        return "loop"
    if operation in ("async-start", "async-done", "async-update"):
        return _of_wrapped(operation, line, bodies)
    if operation.endswith(("-done", "-update")):
        return "wait"
    if operation == "custom-call":
        for target, kind in _LIBRARIES.items():
            if f'custom_call_target="{target}' in line:
                return kind
        return "other"
    if operation == "fusion":
        inside = [parsed(part) for name in called(line) for part in bodies[name]]
        kinds = {_PRODUCTS.get(part.operation) for part in inside if part} - {None}
        return min((kind for kind in kinds if kind), default="other")
    return _PRODUCTS.get(operation, "other")


def _of_wrapped(operation: str, line: str, bodies: dict[str, list[str]]) -> str:
    """The kind of an asynchronous call: a collective's, if it wraps one."""
    end = operation.removeprefix("async")
    named = line.partition("calls=")[2].partition(",")[0].strip().lstrip("%")
    for part in map(parsed, bodies.get(named, [])):
        if part and part.operation in KINDS:
            return part.operation + end
    return "other" if end == "-start" else "wait"


def memory_traffic(program: Any) -> int:
    """Bytes that the kernels of a program read and write, if no cache holds any.

    Each kernel reads its operands and writes its results, whole. One that takes a few
    elements of an array counts as if it read all of them, so that this is an upper
    bound for the memory, and collectives are not in it. The body of a loop counts as
    often as the program says, or once where it does not.

    Args:
      program: from `targets.compiled`, or its text.

    Example:
      >>> text = '''HloModule m
      ...
      ... ENTRY %main {
      ...   %x = f32[8]{0} parameter(0)
      ...   ROOT %y = f32[8]{0} negate(%x)
      ... }'''
      >>> memory_traffic(text)
      64
    """

    def of(part: Instruction, shapes: dict[str, str]) -> int:
        given = [o.shape or shapes.get(o.name, "") for o in operands(part.rest)]
        return sum(map(nbytes, [part.shape, *given]))

    return _total(ENTRY, computations(program_text(program)), of)


_CONTROL = ("while", "conditional", "call", "async-start")


def _total(
    name: str,
    bodies: dict[str, list[str]],
    of: Callable[[Instruction, dict[str, str]], int],
) -> int:
    """The sum over the kernels that a computation starts, those of loops each round.

    Args:
      name: of the computation.
      bodies: from `computations`.
      of: (instruction, name -> shape of the others) -> its part of the sum.
    """
    found = [(line, part) for line in bodies[name] if (part := parsed(line))]
    shapes = {part.name: part.shape for _, part in found}
    total = 0
    for line, part in found:
        operation = part.operation
        if operation in FREE or operation.endswith(("-done", "-update")):
            continue
        if operation.removesuffix("-start") in KINDS:
            continue
        if operation not in _CONTROL:
            total += of(part, shapes)
            continue
        inside = {callee: _total(callee, bodies, of) for callee in called(line)}
        if operation == "conditional":  # one branch runs; the dearest counts
            total += max(inside.values())
        elif operation == "while" and (rounds := trip_count(line)) is not None:
            body = line.partition("body=")[2].partition(",")[0].strip().lstrip("%")
            total += rounds * inside[body]  # nothing is asked in between
        else:
            total += sum(inside.values())
    return total


def open_loops(bodies: dict[str, list[str]], name: str = ENTRY) -> Iterator[str]:
    """The loops of a computation whose length the program does not say."""
    for line in bodies[name]:
        found = parsed(line)
        if found and found.operation in _CONTROL:
            for callee in called(line):
                yield from open_loops(bodies, callee)
            if found.operation == "while" and trip_count(line) is None:
                yield found.name

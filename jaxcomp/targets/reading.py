"""Read what a compiled program costs, before anything has run."""

from typing import Any, NamedTuple

from jaxcomp.targets.order import FREE, Event, order_of
from jaxcomp.wire import KINDS, Collective, collectives
from jaxcomp.wire.text import (
    ENTRY,
    called,
    computations,
    header_of,
    parsed,
    program_text,
    trip_count,
)

__all__ = ["Memory", "Program", "read"]


class Memory(NamedTuple):
    """Bytes that a program needs on each device."""

    arguments: int
    results: int
    reused: int  # results that lie where donated arguments lay
    temporary: int

    @property
    def peak(self) -> int:
        return self.arguments + self.results - self.reused + self.temporary


class Program(NamedTuple):
    """What one device does in one execution of a compiled program."""

    collectives: list[Collective]
    # Kernels and copies that the host starts, those of loops times their rounds. One
    # round is counted of a loop of unknown length. Collectives are not among them.
    launches: int
    # Names of loops whose number of rounds follows from data: after each round the host
    # waits for the device, to learn whether there is another.
    open_loops: tuple[str, ...]
    memory: Memory | None  # None if only the text was given
    order: list[Event]


def read(program: Any) -> Program:
    """Read a compiled program.

    Args:
      program: from `compiled`, or of any `jitted.lower(...).compile()`, or its text.

    Raises:
      WireError: the text is not that of a compiled program, or a collective cannot be
        read.
    """
    text = program_text(program)
    header_of(text)
    bodies = computations(text)
    launches, open_loops = _launches(ENTRY, bodies)
    return Program(
        collectives=collectives(text),
        launches=launches,
        open_loops=open_loops,
        memory=None if isinstance(program, str) else _memory(program),
        order=order_of(bodies),
    )


def _launches(name: str, bodies: dict[str, list[str]]) -> tuple[int, tuple[str, ...]]:
    """Launches of a computation, and its loops of unknown length."""
    count: int = 0
    open_loops: tuple[str, ...] = ()
    for line in bodies[name]:
        found = parsed(line)
        if not found or found.operation in FREE:
            continue
        operation = found.operation
        if operation.endswith(("-done", "-update")):
            continue
        if operation.removesuffix("-start") in KINDS:
            continue
        if operation not in ("while", "conditional", "call", "async-start"):
            count += 1
            continue
        inside = {callee: _launches(callee, bodies) for callee in called(line)}
        each = [launches for launches, _ in inside.values()]
        open_loops += tuple(loop for _, loops in inside.values() for loop in loops)
        if operation == "conditional":  # one branch runs; the dearest counts
            count += max(each)
        elif operation == "while" and (rounds := trip_count(line)) is not None:
            count += rounds * inside[_body_of(line)][0]  # nothing is asked in between
        else:
            open_loops += (found.name,) if operation == "while" else ()
            count += sum(each)
    return count, open_loops


def _body_of(loop: str) -> str:
    """Name of the computation that a loop repeats."""
    return loop.partition("body=")[2].partition(",")[0].strip().lstrip("%")


def _memory(program: Any) -> Memory:
    figures = getattr(program, "compiled", program).memory_analysis()
    return Memory(
        arguments=figures.argument_size_in_bytes,
        results=figures.output_size_in_bytes,
        reused=figures.alias_size_in_bytes,
        temporary=figures.temp_size_in_bytes,
    )

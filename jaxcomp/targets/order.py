"""The order in which a compiled program starts its work."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxcomp.wire import KINDS
from jaxcomp.wire.text import ENTRY, Instruction, called, parsed

__all__ = ["FREE", "Event", "Overlap", "order_of", "overlap"]

# Instructions for which nothing is started: they name memory that exists already.
FREE = frozenset(
    (
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "tuple",
    )
)
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


def order_of(bodies: dict[str, list[str]]) -> list[Event]:
    """What a program starts, in this order; a loop is one event.

    Args:
      bodies: from `wire.text.computations`, of a program that XLA has scheduled.
    """
    return list(_events(ENTRY, bodies))


def _events(name: str, bodies: dict[str, list[str]]) -> Iterator[Event]:
    for line in bodies[name]:
        found = parsed(line)
        if not found or found.operation in FREE:
            continue
        if found.operation in ("call", "conditional"):
            for callee in called(line):
                yield from _events(callee, bodies)
            continue
        kind = _kind(found, line, bodies)
        if kind != "wait":
            yield Event(kind, found.name, _source(line))


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


def _source(line: str) -> str:
    return line.partition('op_name="')[2].partition('"')[0]

"""How many bytes a compiled program reads and writes in the memory of its device."""

import math
import re
from typing import Any

from jaxcomp.targets.order import FREE
from jaxcomp.wire import KINDS
from jaxcomp.wire.text import (
    ENTRY,
    called,
    computations,
    operands,
    parsed,
    program_text,
    trip_count,
)

__all__ = ["memory_traffic"]

_CONTROL = ("while", "conditional", "call")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


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
    return _traffic(ENTRY, computations(program_text(program)))


def _traffic(name: str, bodies: dict[str, list[str]]) -> int:
    found = [(line, part) for line in bodies[name] if (part := parsed(line))]
    shapes = {part.name: part.shape for _, part in found}
    total = 0
    for line, part in found:
        operation = part.operation
        if operation in FREE or operation.endswith(("-done", "-update")):
            continue
        if operation.removesuffix("-start") in KINDS:
            continue
        if operation in _CONTROL:
            inside = [_traffic(callee, bodies) for callee in called(line)]
            if operation == "conditional":
                total += max(inside)
            else:
                total += sum(inside) * (trip_count(line) or 1)
            continue
        given = [o.shape or shapes.get(o.name, "") for o in operands(part.rest)]
        total += sum(map(_bytes, [part.shape, *given]))
    return total


def _bytes(shape: str) -> int:
    """Bytes of an array or a tuple, as a program writes its shape.

    Example:
      >>> _bytes("(f32[2,3]{1,0}, pred[8])"), _bytes("u4[8]"), _bytes("token[]")
      (32, 4, 0)
    """
    bits = 0
    for kind, width, sides in _ARRAY.findall(shape):
        if kind != "pred" and not width:
            continue
        count = math.prod(int(side) for side in sides.split(",") if side)
        bits += count * (8 if kind == "pred" else int(width))
    return -(-bits // 8)

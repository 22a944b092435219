"""Spec strings: the one short name of a method in configs, tables and plot legends.

`grammar` reads them, `arguments` says what an argument may be, `factories` calls what
a spec names and writes the name of what was called, and `kinds` finds a name that is
looked for in the wrong registry.
"""

from jaxcomp.core.specs.factories import (
    Clip,
    Count,
    Positive,
    Range,
    Shown,
    argument,
    build,
    check,
    method,
    publish,
    unknown,
)
from jaxcomp.core.specs.grammar import (
    Call,
    Pipe,
    SpecError,
    calls,
    error_at,
    nearest,
    parse,
    pieces,
    suggest,
)

__all__ = [
    "Call",
    "Clip",
    "Count",
    "Pipe",
    "Positive",
    "Range",
    "Shown",
    "SpecError",
    "argument",
    "build",
    "calls",
    "check",
    "error_at",
    "method",
    "nearest",
    "parse",
    "pieces",
    "publish",
    "suggest",
    "unknown",
]

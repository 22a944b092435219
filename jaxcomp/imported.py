"""What a config names by its import path: `my_package.nets:tiny(width=3)`."""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxcomp.specs import Call, SpecError, error_at, parse, suggest

__all__ = ["check_kind", "importable"]

_PATH = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:(.*)", re.DOTALL)


def importable(
    spec: str, registry: Mapping[str, Callable[..., Any]], kind: str
) -> tuple[str, Mapping[str, Callable[..., Any]]]:
    """A spec as `specs.build` takes it, and the registry that has what it names.

    Args:
      spec: `name(arguments)`, or the same after a module and a colon.
      registry: of the names that need no module.
      kind: what it holds, for messages.

    Raises:
      SpecError: there is no such module, it has no such name, or it cannot be called.

    Example:
        >>> importable("fractions:Fraction(3)", {}, "number")
        ('Fraction(3)', {'Fraction': <class 'fractions.Fraction'>})
        >>> try:
        ...     importable("fractions:Fractoin", {}, "number")
        ... except SpecError as error:
        ...     print(str(error).partition(": ")[2])
        module 'fractions' has no 'Fractoin'. Did you mean 'Fraction'? Valid: Decimal, \
Fraction
    """
    match = _PATH.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        return spec, registry
    module, rest = match[1], match[2].strip()
    call = parse(rest)
    if not isinstance(call, Call):
        raise error_at(call.left, f"'|' composes compressors; a {kind} stands alone")
    return rest, {call.name: _attribute(module, call.name, f"{kind} {spec!r}")}


def check_kind(value: Any, wanted: Any, spec: str, kind: str) -> Any:
    """The value, if it is what a factory of one's own has to make.

    Args:
      value: that it made.
      wanted: a type.
      spec: that names the factory.
      kind: of the config, for the message.

    Example:
        >>> try:
        ...     check_kind({}, list, "my.data:load", "dataset")
        ... except SpecError as error:
        ...     print(error)
        dataset 'my.data:load' makes a value of type dict, not a list
    """
    if isinstance(value, wanted):
        return value
    made, right = type(value).__name__, wanted.__name__
    raise SpecError(f"{kind} {spec!r} makes a value of type {made}, not a {right}")


def _attribute(module: str, name: str, what: str) -> Callable[..., Any]:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        raise SpecError(
            f"{what}: there is no module {error.name!r}. Install it, or put the folder "
            "that holds it into the environment variable PYTHONPATH"
        ) from None
    value = getattr(found, name, None)
    if callable(value):
        return value
    if value is not None:
        message = f"is of type {type(value).__name__}, not a function or class"
        raise SpecError(f"{what}: {name!r} of module {module!r} {message}")
    public = [n for n, x in vars(found).items() if callable(x) and n[0] != "_"]
    hint = suggest(name, public)
    raise SpecError(f"{what}: module {module!r} has no {name!r}. {hint}")

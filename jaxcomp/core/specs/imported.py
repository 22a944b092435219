"""Functions that a config names by an import path: `my_package.nets:tiny(width=3)`."""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxcomp.core.specs import Call, SpecError, error_at, parse, suggest

_PATH = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:(.*)", re.DOTALL)


def importable(
    spec: str, registry: Mapping[str, Callable[..., Any]], kind: str
) -> tuple[str, Mapping[str, Callable[..., Any]]]:
    """A spec without its module, and a registry in which `specs.build` finds its name.

    Args:
      spec: `name(arguments)`, or `module:name(arguments)`.
      registry: for names without a module.
      kind: what the registry holds, for messages.

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
    """The value that an imported factory made, if it has the right type.

    Args:
      value: made by the factory.
      wanted: its type.
      spec: names the factory, for the message.
      kind: the config key, for the message.

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
            raise  # the module is there, but imports one that is not
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

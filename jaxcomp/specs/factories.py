"""Calls of the factories that specs name, and the names that factories get."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
)

from jaxcomp.errors import UserError
from jaxcomp.specs.arguments import Shown, check, kinds_of
from jaxcomp.specs.grammar import Call, Pipe, SpecError, error_at, parse, show, suggest
from jaxcomp.specs.kinds import unknown

__all__ = ["argument", "build", "method"]

P = ParamSpec("P")
R = TypeVar("R")


def method(
    *shown: str, given: int = 0
) -> Callable[[Callable[Concatenate[str, P], R]], Callable[P, R]]:
    """Check a factory's arguments by their annotations and give it their name.

    The factory takes the name first, which its callers do not see: the one spec string
    that builds the same method again.

    Args:
      *shown: arguments that stand in every name; the others only where they are not the
        default.
      given: how many arguments come first that no spec can name, such as the exchange
        that a memory wraps.

    Example:
      >>> @method("keep")
      ... def top_k(name: str, keep: float = 0.01, index: str = "auto"):
      ...     return name
      >>> top_k(1), top_k(0.5, index="plain")
      ('top_k(keep=1)', "top_k(keep=0.5, index='plain')")
      >>> top_k(keep="all")
      Traceback (most recent call last):
      jaxcomp.specs.grammar.SpecError: keep is a number, not 'all'
    """

    def decorate(factory: Callable[Concatenate[str, P], R]) -> Callable[P, R]:
        full = inspect.signature(factory)
        signature = full.replace(parameters=list(full.parameters.values())[1:])
        own = list(signature.parameters.values())[given:]
        label = factory.__name__.removeprefix("_")
        for p in own:
            if p.annotation is p.empty:
                raise TypeError(f"{label}: the argument {p.name} has no annotation")
        if not set(shown) <= {p.name for p in own}:
            raise TypeError(f"{label} has no arguments {shown}")

        @functools.wraps(factory)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for p in own:
                check(p.annotation, p.name, bound.arguments[p.name])
            parts = [
                f"{p.name}={_text(p, bound.arguments)}"
                for p in own
                if p.name in shown or not _is_default(p, bound.arguments)
            ]
            name = f"{label}({', '.join(parts)})" if parts else label
            return factory(name, *args, **kwargs)

        named.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        named.shown = shown  # pyright: ignore[reportAttributeAccessIssue]
        return named

    return decorate


def build(
    spec: "str | Call | Pipe",
    registry: Mapping[str, Callable[..., Any]],
    kind: str,
    *given: Any,
) -> Any:
    """Call the factory that a spec names, with the spec's arguments.

    Where an argument takes strings and no specs, a string that is a name needs no
    quotes: cast(float16). A `UserError` of the factory is shown with its place in the
    spec; every other error is a fault of the factory, and passes.

    Args:
      spec: spec string or parsed `Call`.
      registry: name -> factory.
      kind: what the registry holds, for messages ("compressor").
      *given: leading positional arguments that the caller supplies, such as the
        compressor that a scope lifts. The spec cannot override them.

    Raises:
      SpecError: unknown name, argument or value; the message lists the valid ones.

    Example:
      >>> build("scale(by=3)", {"scale": lambda x, by=2: x * by}, "function", 5)
      15
    """
    call = parse(spec) if isinstance(spec, str) else spec
    if isinstance(call, Pipe):
        message = f"'|' composes compressors; a {kind} cannot be composed"
        raise error_at(call.left, message)
    if call.name not in registry:
        raise error_at(call, unknown(kind, call.name, registry))
    factory = registry[call.name]
    parameters = list(inspect.signature(factory).parameters.values())[len(given) :]
    _check_names(parameters, call, kind)
    call = _with_strings(parameters, call)
    try:
        _check_values(parameters, call)
        return factory(*given, *call.args, **call.kwargs)
    except UserError as error:
        is_placed = isinstance(error, SpecError) and error.placed
        if is_placed or error.exit_code != SpecError.exit_code:
            raise
        raise error_at(call, f"{call.name}: {error}") from error


def argument(call: Call, factory: Callable[..., Any], name: str, given: int = 0) -> Any:
    """The value that a call gives to an argument of its factory, or the default.

    Args:
      call: of the factory.
      factory: that the call names.
      name: of the argument.
      given: leading arguments that do not come from the call, as in `build`.

    Raises:
      KeyError: the factory has no such argument.

    Example:
      >>> def top_k(keep=0.01, index="auto"): ...
      >>> argument(parse("top_k(0.5)"), top_k, "keep")
      0.5
      >>> argument(parse("top_k"), top_k, "keep")
      0.01
    """
    parameters = inspect.signature(factory).parameters
    default = parameters[name].default
    positional = dict(zip(list(parameters)[given:], call.args, strict=False))
    return {**positional, **call.kwargs}.get(name, default)


def _is_default(p: inspect.Parameter, arguments: Mapping[str, Any]) -> bool:
    if p.default is p.empty:
        return False
    return arguments[p.name] == p.default or _text(p, arguments) == _text(
        p, {**arguments, p.name: p.default}
    )


def _text(p: inspect.Parameter, arguments: Mapping[str, Any]) -> str:
    """How an argument stands in a name."""
    notes = get_args(p.annotation) if get_origin(p.annotation) is Annotated else ()
    shown = next((note for note in notes if isinstance(note, Shown)), None)
    value = arguments[p.name]
    return show(value) if shown is None else shown.text(value, arguments)


def _check_names(parameters: list[inspect.Parameter], call: Call, kind: str) -> None:
    """Refuse unknown, repeated, surplus or missing arguments."""
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    for key in call.kwargs:
        if key not in names:
            hint = suggest(key, names)
            message = f"{kind} {call.name!r} has no argument {key!r}. {hint}"
            raise error_at(call, message)
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(call.args) > len(positional):
        message = (
            f"{kind} {call.name!r} takes its arguments by name: "
            f"{', '.join(names) or '(none)'}"
        )
        raise error_at(call, message)
    for name in positional[: len(call.args)]:
        if name in call.kwargs:
            message = f"{kind} {call.name!r} is given {name!r} twice"
            raise error_at(call, message)
    required = [
        p.name
        for p in parameters[len(call.args) :]
        if p.default is p.empty and p.name not in call.kwargs
    ]
    if required:
        message = f"{kind} {call.name!r} needs {', '.join(required)}"
        raise error_at(call, message)


def _check_values(parameters: list[inspect.Parameter], call: Call) -> None:
    """Refuse values that do not fit the annotations."""
    by_name = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    positional = zip((p.name for p in parameters), call.args, strict=False)
    for name, value in [*positional, *call.kwargs.items()]:
        if name in by_name:
            check(by_name[name], name, value)


def _with_strings(parameters: list[inspect.Parameter], call: Call) -> Call:
    """The call with bare names as strings, where no specs are taken."""
    takes = {p.name: kinds_of(p.annotation) for p in parameters}

    def plain(name: str, value: Any) -> Any:
        is_bare = isinstance(value, Call) and not value.args and not value.kwargs
        strings = any(k is str or get_origin(k) is Literal for k in takes[name])
        return value.name if is_bare and strings and Call not in takes[name] else value

    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    args = tuple(plain(*pair) for pair in zip(names, call.args, strict=False))
    kwargs = {name: plain(name, value) for name, value in call.kwargs.items()}
    return call._replace(args=args, kwargs=kwargs)

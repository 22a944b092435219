"""Factories of methods: kinds of arguments, their checks, and names from arguments."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs.grammar import (
    Call,
    Pipe,
    SpecError,
    error_at,
    meant,
    nearest,
    parse,
    show,
    suggest,
)

_ALIKE = 0.8  # how alike a name has to be to one of another kind
_KNOWN: dict[str, Mapping[str, Callable[..., Any]]] = {}


def publish(**registries: Mapping[str, Callable[..., Any]]) -> None:
    """Let messages about unknown names look into these registries too.

    Args:
      **registries: each after the key of a config that names its members.
    """
    _KNOWN.update(registries)


def unknown(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    """The message about a name that a registry does not have.

    Args:
      kind: what the registry holds.
      name: that it does not have.
      valid: the registry.

    Example:
      >>> from jaxcomp import compressors
      >>> unknown("compressor", "powersgd", compressors.REGISTRY).split(" Valid: ")[0]
      "unknown compressor 'powersgd': power_sgd is an exchange: \
--config.exchange='power_sgd(rank=2)'."
    """
    others = {
        other: key
        for key, registry in _KNOWN.items()
        if key != kind
        for other in registry
        if other not in (*valid, "none")
    }
    meant = nearest(name, others, _ALIKE)
    if meant is None or nearest(name, valid, _ALIKE):
        return f"unknown {kind} {name!r}. {suggest(name, valid)}"
    key = others[meant]
    article = "an" if key[0] in "aeiou" else "a"
    spec = _example(meant, _KNOWN[key][meant])
    return (
        f"unknown {kind} {name!r}: {meant} is {article} {key}: "
        f"--config.{key}={spec!r}. Valid: {', '.join(sorted(valid))}"
    )


def _example(name: str, factory: Callable[..., Any]) -> str:
    """A spec with the arguments that stand in every name."""
    parameters = inspect.signature(factory).parameters
    shown = [parameters[key] for key in getattr(factory, "shown", ())]
    values = {p.name: "..." if p.default is p.empty else show(p.default) for p in shown}
    arguments = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({arguments})" if arguments else name


class Range(NamedTuple):
    """A range of valid numbers; each border may belong to it or not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    says: str = ""  # instead of "a number in (0, 1]", to tell what is counted

    def holds(self, value: float) -> bool:
        """Whether a number is valid; NaN and infinities never are."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def phrase(self, kind: type) -> str:
        """What is valid, in words.

        Example:
          >>> Range(above=0, most=1).phrase(float), Range(least=1).phrase(int)
          ('a number in (0, 1]', 'a whole number of at least 1')
        """
        noun = "a whole number" if kind is int else "a number"
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if self.says:
            return self.says
        if low is None:
            return noun if high is None else f"{noun} of at most {high}"
        if high is None:
            way = "of at least" if self.above is None else "above"
            return f"{noun} {way} {low}"
        if kind is int:
            return f"{noun} from {low} to {high}"
        opening = "[" if self.above is None else "("
        closing = "]" if self.below is None else ")"
        return f"{noun} in {opening}{low}, {high}{closing}"


Count = Annotated[int, Range(least=1)]
Positive = Annotated[float, Range(above=0)]
Clip = Annotated[float, Range(above=0, says="a positive number")]


class Shown(NamedTuple):
    """How a value stands in names, where it is not a number, a flag or a string.

    `text` is given the value and all arguments of the call, with their defaults.
    """

    text: Callable[[Any, Mapping[str, Any]], str]


def check(annotation: Any, name: str, value: Any) -> None:
    """Refuse a value that does not fit an annotation.

    Raises:
      SpecError: says the argument, what is valid and what was given.

    Example:
      >>> check(Annotated[int, Range(1, 8)] | None, "bits", None)
      >>> check(Annotated[int, Range(1, 8)], "bits", 0)
      Traceback (most recent call last):
      jaxcomp.SpecError: bits is a whole number from 1 to 8, not 0
    """
    kinds = kinds_of(annotation)
    if not any(_fits(kind, value) for kind in kinds):
        names = [word for kind in kinds for word in _literals(kind)]
        hint = meant(value, names) if isinstance(value, str) else ""
        message = f"{name} is {_phrase(kinds)}, not {_shown(value)}"
        raise SpecError(f"{message}. {hint}".rstrip() if hint else message)


def kinds_of(annotation: Any) -> list[Any]:
    """The members of a union, of unions in it too.

    Example:
      >>> kinds_of(Annotated[int, Range(1)] | None)[1]
      <class 'NoneType'>
    """
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    if get_origin(annotation) is Annotated and not _range_of(annotation):
        return kinds_of(get_args(annotation)[0])
    return [annotation]


def _range_of(kind: Any) -> Range | None:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note for note in notes if isinstance(note, Range)), None)


def _shown(value: Any) -> str:
    """A value as somebody would write it."""
    if isinstance(value, tuple) and not isinstance(value, Call | Pipe):
        return f"[{', '.join(map(_shown, value))}]"
    plain = isinstance(value, numbers.Number | Call | Pipe)
    return str(value) if plain else repr(value)


def _fits(kind: Any, value: Any) -> bool:
    borders = _range_of(kind)
    if borders is not None:
        return _fits(get_args(kind)[0], value) and borders.holds(value)
    if get_origin(kind) is Literal:
        return any(type(value) is type(v) and value == v for v in get_args(kind))
    if get_origin(kind) is Sequence:
        of = kinds_of(get_args(kind)[0])
        is_list = isinstance(value, tuple | list) and not isinstance(value, Call | Pipe)
        return is_list and all(any(_fits(k, part) for k in of) for part in value)
    if kind is int:
        return type(value) is int  # True is none
    if kind is float:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _phrase(kinds: list[Any]) -> str:
    """What is valid, in words, joined by "or"."""
    if len(kinds) == 1 and _literals(kinds[0]):
        return f"one of {', '.join(_literals(kinds[0]))}"
    words = list(dict.fromkeys(word for kind in kinds for word in _words(kind)))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _literals(kind: Any) -> list[str]:
    """The strings that are valid by name."""
    values = get_args(kind) if get_origin(kind) is Literal else ()
    return [value for value in values if isinstance(value, str)]


def _words(kind: Any) -> Iterable[str]:
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if get_origin(kind) is Sequence:
        parts = " or ".join(w for k in kinds_of(get_args(kind)[0]) for w in _words(k))
        return [f"a list, of which each part is {parts}"]
    borders, base = _range_of(kind), kind
    if borders is not None:
        base = get_args(kind)[0]
    if base in (int, float):
        return [(borders or Range()).phrase(base)]
    names = {bool: "True or False", NoneType: "None", str: "a string"}
    names |= dict.fromkeys((Call, Pipe), "a spec such as 'sign'")
    names[Mapping] = "keys with their values"
    return [names.get(base, f"a {getattr(base, '__name__', base)}")]


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
      jaxcomp.SpecError: keep is a number, not 'all'
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

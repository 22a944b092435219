"""Spec strings: the one short name of a method in configs, tables and plot legends.

A string is parsed with Python's own parser and never evaluated::

    spec  := call | call "|" spec
    call  := NAME | NAME "(" arguments ")"
    value := number | "string" | True | False | None | [values] | (values) | spec

`build` calls the factory that a spec names, whose annotations say what an argument may
be, and `method` writes the name of what was called. Every mistake is a `SpecError` that
shows the text, a caret under the place, and what would be right.
"""

import ast
import difflib
import functools
import importlib
import inspect
import math
import numbers
import re
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

P = ParamSpec("P")
R = TypeVar("R")


class SpecError(UserError):
    """A name, an argument or a value that does not exist or makes no sense."""

    __module__ = "jaxcomp"
    placed = False  # whether the message shows where in a spec string it stands


class Call(NamedTuple):
    """`name(*args, **kwargs)`; values may be specs again."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str  # the whole spec string, for messages
    column: int

    def __str__(self) -> str:
        arguments = [show(value) for value in self.args]
        arguments += [f"{key}={show(value)}" for key, value in self.kwargs.items()]
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name


class Pipe(NamedTuple):
    """`left | right`."""

    left: Call
    right: "Call | Pipe"

    def __str__(self) -> str:
        return f"{self.left} | {self.right}"


def parse(text: str) -> Call | Pipe:
    """Parse a spec string.

    Example:
      >>> str(parse("top_k( keep = 0.01 )|qsgd(levels=127)"))
      'top_k(keep=0.01) | qsgd(levels=127)'
    """
    if not isinstance(text, str):
        raise SpecError(f"a spec is a string such as 'top_k(keep=0.01)', not {text!r}")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        percent = re.search(r"(\d+\.?\d*)\s*%", text)
        if percent:
            message = f"{percent[0]!r} is no number: write {float(percent[1]) / 100:g}"
            raise _error(
                text.strip(), text.strip().index(percent[0]), message
            ) from None
        place = max((error.offset or 1) - 1, 0)
        raise _error(text.strip(), place, f"not a spec: {error.msg}") from None
    return _read(node, text.strip())


def calls(spec: "str | Call | Pipe") -> list[Call]:
    """The parts of a composition, from left to right.

    Example:
      >>> [call.name for call in calls("top_k | qsgd(levels=127)")]
      ['top_k', 'qsgd']
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    return [spec] if isinstance(spec, Call) else [spec.left, *calls(spec.right)]


def pieces(text: str) -> list[str]:
    """The parts of a composition as text, of which each may be an import path.

    Example:
      >>> pieces("crop(pad=2) | my.images:blur(of='a|b')")
      ['crop(pad=2)', "my.images:blur(of='a|b')"]
    """
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([") - (letter in ")]")
        if letter == "|" and not depth and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def error_at(call: Call, message: str) -> SpecError:
    """The error that shows where in the text a call stands."""
    return _error(call.text, call.column, message)


def suggest(name: str, valid: Iterable[str]) -> str:
    """A sentence with the close match, if any, and all valid names.

    Example:
      >>> suggest("topk", ["top_k", "sign"])
      "Did you mean 'top_k'? Valid: sign, top_k"
    """
    names = sorted(valid)
    return f"{meant(name, names)}Valid: {', '.join(names) or '(none)'}"


def meant(name: str, valid: Iterable[str]) -> str:
    """The question after the close match, with a space behind it, or nothing."""
    close = nearest(name, valid)
    return f"Did you mean {close!r}? " if close else ""


def nearest(name: str, valid: Iterable[str], least: float = 0.5) -> str | None:
    """The name that is meant: that of these initials, or the most alike.

    Args:
      name: as somebody wrote it.
      valid: the names that there are.
      least: how alike they have to be, between 0 and 1.

    Example:
      >>> nearest("ef", ["ef21", "error_feedback"]), nearest("x", ["sign"])
      ('error_feedback', None)
    """
    names = list(valid)
    initials = {"".join(p[:1] for p in n.split("_")): n for n in names if "_" in n}
    if name in initials:
        return initials[name]
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=least)
    # Letters in another order are the likeliest slip: qsdg is qsgd rather than qsvd.
    close.sort(key=lambda other: sorted(other) != sorted(str(name)))
    return close[0] if close else None


_CONSTANTS = (int, float, str, bool, type(None))  # not bytes, complex or "..."


def _read(node: ast.expr, text: str, is_value: bool = False) -> Any:
    """A spec, or the value of an argument, which may be a spec again."""
    wanted = "a name such as top_k or top_k(keep=0.01)"
    if is_value:
        wanted = "a number, a string, or a spec"
        if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = _read(node.operand, text, is_value=True)
            if isinstance(inner, int | float):
                return -inner
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(_read(element, text, is_value=True) for element in node.elts)
        if isinstance(node, ast.Name | ast.Call | ast.BinOp):
            return _read(node, text)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _pipe(_read(node.left, text), _read(node.right, text))
    elif isinstance(node, ast.Name):
        return Call(node.id, (), {}, text, node.col_offset)
    elif isinstance(node, ast.Constant) and node.value is None:
        return Call("none", (), {}, text, node.col_offset)  # people write None for none
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if any(isinstance(a, ast.Starred) for a in node.args):
            raise _error(text, node.col_offset, "'*' is not allowed in a spec")
        kwargs = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise _error(text, node.col_offset, "'**' is not allowed in a spec")
            if keyword.arg in kwargs:
                raise _error(text, keyword.col_offset, f"{keyword.arg!r} stands twice")
            kwargs[keyword.arg] = _read(keyword.value, text, is_value=True)
        args = tuple(_read(a, text, is_value=True) for a in node.args)
        return Call(node.func.id, args, kwargs, text, node.col_offset)
    raise _error(text, node.col_offset, f"expected {wanted}")


def _pipe(left: Call | Pipe, right: Call | Pipe) -> Pipe:
    """Nest to the right: in a | b | c, the values of a pass through b | c."""
    if isinstance(left, Pipe):
        return Pipe(left.left, _pipe(left.right, right))
    return Pipe(left, right)


def show(value: Any) -> str:
    """The shortest text that gives the same value again."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return repr(float(value)).removesuffix(".0")
    return str(value) if isinstance(value, Call | Pipe) else repr(value)


def _error(text: str, column: int, message: str) -> SpecError:
    error = SpecError(f"{message}\n    {text}\n    {' ' * column}^")
    error.placed = True
    return error


_ALIKE = 0.8  # how alike a name has to be to one of another kind
_KNOWN: dict[str, Mapping[str, Callable[..., Any]]] = {}
_LATER: list[str] = []


def publish(*later: str, **registries: Mapping[str, Callable[..., Any]]) -> None:
    """Let messages about unknown names look into these registries too.

    Args:
      *later: modules that publish more, which are loaded for the first such message.
      **registries: each after the key of a config that names its members.
    """
    _LATER.extend(later)
    _KNOWN.update(registries)


def unknown(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    """The message about a name that a registry does not have.

    Args:
      kind: what the registry holds.
      name: that it does not have.
      valid: the registry.

    Example:
      >>> from jaxcomp import compressors, make_exchange
      >>> unknown("compressor", "powersgd", compressors.REGISTRY).split(" Valid: ")[0]
      "unknown compressor 'powersgd': power_sgd is an exchange: \
--config.exchange=power_sgd."
    """
    while _LATER:
        importlib.import_module(_LATER.pop())
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
    return (
        f"unknown {kind} {name!r}: {meant} is {article} {key}: "
        f"--config.{key}={meant}. Valid: {', '.join(sorted(valid))}"
    )


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
    fits, words = _kind(annotation)
    if fits(value):
        return
    names = [word[1:-1] for word in words if word.startswith("'")]
    valid = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    if len(names) == len(words):
        valid = f"one of {', '.join(names)}"
    hint = meant(value, names).rstrip() if isinstance(value, str) else ""
    message = f"{name} is {valid}, not {_shown(value)}"
    raise SpecError(f"{message}. {hint}" if hint else message)


def _kind(annotation: Any) -> tuple[Callable[[Any], bool], list[str]]:
    """Whether a value fits an annotation, and what does, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        tests, words = zip(*map(_kind, parts), strict=True)
        every = dict.fromkeys(word for some in words for word in some)
        return lambda v: any(fits(v) for fits in tests), list(every)
    if origin is Literal:
        words = [*map(repr, parts)]
        return lambda v: any(type(v) is type(p) and v == p for p in parts), words
    if origin is Sequence:
        fits, words = _kind(parts[0])
        words = [f"a list, of which each part is {' or '.join(words)}"]
        return lambda v: type(v) in (tuple, list) and all(map(fits, v)), words
    if origin is Annotated:
        fits, words = _kind(parts[0])
        borders = next((note for note in parts[1:] if isinstance(note, Range)), None)
        if borders is None:
            return fits, words
        words = [borders.phrase(parts[0])]
        return lambda v: fits(v) and borders.holds(v), words
    if annotation is int:
        return lambda v: type(v) is int, ["a whole number"]  # True is none
    if annotation is float:
        fits = _kind(numbers.Real)[0]
        words = ["a number"]
        return lambda v: fits(v) and type(v) is not bool and math.isfinite(v), words
    names = {bool: "True or False", NoneType: "None", str: "a string"}
    names |= dict.fromkeys((Call, Pipe), "a spec such as 'sign'")
    names[Mapping] = "keys with their values"
    words = [names.get(annotation, f"a {getattr(annotation, '__name__', annotation)}")]
    if annotation is Any or not isinstance(annotation, type):
        return lambda v: True, words
    return lambda v: isinstance(v, annotation), words


def kinds_of(annotation: Any) -> list[Any]:
    """The members of a union, of unions in it too.

    Example:
      >>> kinds_of(Annotated[int, Range(1)] | None)[1]
      <class 'NoneType'>
    """
    origin, (first, *notes) = get_origin(annotation), get_args(annotation) or (None,)
    if origin in (Union, UnionType):
        return [kind for part in (first, *notes) for kind in kinds_of(part)]
    if origin is Annotated and not any(isinstance(note, Range) for note in notes):
        return kinds_of(first)
    return [annotation]


def _shown(value: Any) -> str:
    """A value as somebody would write it."""
    if isinstance(value, tuple) and not isinstance(value, Call | Pipe):
        return f"[{', '.join(map(_shown, value))}]"
    plain = isinstance(value, numbers.Number | Call | Pipe)
    return str(value) if plain else repr(value)


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
        notes = [(p.name, note) for p in own for note in get_args(p.annotation)]
        fits = {p.name: _kind(p.annotation)[0] for p in own}
        texts = {p.name: lambda value, _: show(value) for p in own}
        texts |= {name: note.text for name, note in notes if isinstance(note, Shown)}

        @functools.wraps(factory)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values, parts = bound.arguments, []
            for p in own:
                if not fits[p.name](values[p.name]):
                    check(p.annotation, p.name, values[p.name])  # says what does
            for p in own:
                text, usual = texts[p.name], {**values, p.name: p.default}
                is_usual = p.default is not p.empty and (
                    values[p.name] == p.default
                    or text(values[p.name], values) == text(p.default, usual)
                )
                if p.name in shown or not is_usual:
                    parts.append(f"{p.name}={text(values[p.name], values)}")
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
    try:
        return factory(*given, **_arguments(call, factory, kind, len(given)))
    except UserError as error:
        is_placed = isinstance(error, SpecError) and error.placed
        if is_placed or error.exit_code != SpecError.exit_code:
            raise
        raise error_at(call, f"{call.name}: {error}") from error


def _arguments(
    call: Call, factory: Callable[..., Any], kind: str, given: int
) -> dict[str, Any]:
    """The arguments of a call by name, if they have the names and kinds of a factory.

    A bare name is a string where strings are taken and specs are not.
    """
    parameters = list(inspect.signature(factory).parameters.values())[given:]
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    values = dict(zip(positional, call.args, strict=False))
    wrong = [key for key in call.kwargs if key not in names]
    twice = [name for name in values if name in call.kwargs]
    values |= call.kwargs
    missing = [
        p.name for p in parameters if p.default is p.empty and p.name not in values
    ]
    message = ""
    if wrong:
        message = f"has no argument {wrong[0]!r}. {suggest(wrong[0], names)}"
    elif len(call.args) > len(positional):
        message = f"takes its arguments by name: {', '.join(names) or '(none)'}"
    elif twice:
        message = f"is given {twice[0]!r} twice"
    elif missing:
        message = f"needs {', '.join(missing)}"
    if message:
        raise error_at(call, f"{kind} {call.name!r} {message}")
    for p in parameters:
        value = values.get(p.name)
        if isinstance(value, Call) and not value.args and not value.kwargs:
            kinds = kinds_of(p.annotation)
            is_text = any(k is str or get_origin(k) is Literal for k in kinds)
            values[p.name] = value.name if is_text and Call not in kinds else value
        # What `method` made checks its arguments itself.
        is_checked = hasattr(factory, "shown") or p.annotation is p.empty
        if p.name in values and not is_checked:
            check(p.annotation, p.name, values[p.name])
    return values


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

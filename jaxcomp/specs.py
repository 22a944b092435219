"""Spec strings: the one short name of a method in configs, tables and plot legends.

Grammar, parsed with Python's own parser and never evaluated::

    spec  := call | call "|" spec
    call  := NAME | NAME "(" arguments ")"
    value := number | "string" | True | False | None | [values] | (values) | spec

`build` looks the name up in a registry of factories. Where a factory takes strings and
no specs, a string that is a name needs no quotes: cast(float16). Every mistake is a
`SpecError` that shows the text, a caret under the place, and what would be right.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_args

__all__ = [
    "Call",
    "Pipe",
    "SpecError",
    "argument",
    "build",
    "calls",
    "canonical",
    "error_at",
    "parse",
    "suggest",
]


class SpecError(ValueError):
    """A spec string that names something that does not exist or makes no sense."""


class Call(NamedTuple):
    """`name(*args, **kwargs)`; values may be specs again."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str  # the whole spec string, for messages
    column: int

    def __str__(self) -> str:
        arguments = [_show(value) for value in self.args]
        arguments += [f"{key}={_show(value)}" for key, value in self.kwargs.items()]
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
        >>> str(parse("top_k( keep = 0.01 )|qsgd(levels=7)"))
        'top_k(keep=0.01) | qsgd(levels=7)'
    """
    if not isinstance(text, str):
        raise SpecError(f"a spec is a string such as 'top_k(keep=0.01)', not {text!r}")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        place = max((error.offset or 1) - 1, 0)
        raise _error(text.strip(), place, f"not a spec: {error.msg}") from None
    return _spec(node, text.strip())


def build(
    spec: "str | Call", registry: Mapping[str, Callable[..., Any]], kind: str, *given
) -> Any:
    """Call the factory that a spec names, with the spec's arguments.

    Args:
      spec: spec string or parsed `Call`.
      registry: name -> factory.
      kind: what the registry holds, for messages ("compressor").
      *given: leading positional arguments that the caller supplies, such as the
        compressor that a scope lifts. The spec cannot override them.

    Example:
        >>> build("scale(by=3)", {"scale": lambda x, by=2: x * by}, "function", 5)
        15
    """
    call = parse(spec) if isinstance(spec, str) else spec
    if isinstance(call, Pipe):
        message = f"'|' composes compressors; a {kind} cannot be composed"
        raise error_at(call.left, message)
    if call.name not in registry:
        hint = suggest(call.name, registry)
        raise error_at(call, f"unknown {kind} {call.name!r}. {hint}")
    factory = registry[call.name]
    _check_arguments(factory, call, kind, len(given))
    call = _with_strings(factory, call, len(given))
    try:
        return factory(*given, *call.args, **call.kwargs)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:  # TypeError: a value of the wrong kind
        raise error_at(call, f"{call.name}: {error}") from error


def calls(spec: "str | Call | Pipe") -> list[Call]:
    """The parts of a composition, from left to right.

    Example:
        >>> [call.name for call in calls("top_k | qsgd(levels=7)")]
        ['top_k', 'qsgd']
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    return [spec] if isinstance(spec, Call) else [spec.left, *calls(spec.right)]


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
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    # Letters in another order are the likeliest slip: qsdg is qsgd rather than qsvd.
    close.sort(key=lambda other: sorted(other) != sorted(str(name)))
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Valid: {', '.join(names) or '(none)'}"


def canonical(factory: Callable, shown: Iterable[str] = (), **arguments: Any) -> str:
    """The one spec string that builds the same method again.

    Args:
      factory: what the registry has under its own name.
      shown: arguments that stand in every name; the others only where they are not the
        default.
      **arguments: of the factory, in its order.

    Example:
        >>> def top_k(keep=0.01, index="auto"): ...
        >>> canonical(top_k, ["keep"], keep=0.5, index="auto")
        'top_k(keep=0.5)'
        >>> canonical(top_k, ["keep"], keep=1.0, index="plain")
        "top_k(keep=1, index='plain')"
    """
    usual = inspect.signature(factory).parameters
    parts = [
        f"{name}={_show(value)}"
        for name, value in arguments.items()
        if name in shown or value != usual[name].default
    ]
    name = factory.__name__
    return f"{name}({', '.join(parts)})" if parts else name


def _check_arguments(factory: Callable, call: Call, kind: str, given: int) -> None:
    """Refuse unknown, repeated or surplus arguments before the factory runs."""
    parameters = list(inspect.signature(factory).parameters.values())[given:]
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


def _with_strings(factory: Callable, call: Call, given: int) -> Call:
    """The call with bare names as strings, where the factory takes no specs."""
    parameters = list(inspect.signature(factory).parameters.values())[given:]
    takes = {p.name: get_args(p.annotation) or (p.annotation,) for p in parameters}

    def plain(name: str, value: Any) -> Any:
        is_bare = isinstance(value, Call) and not value.args and not value.kwargs
        wants_string = str in takes[name] and Call not in takes[name]
        return value.name if is_bare and wants_string else value

    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    args = tuple(plain(*pair) for pair in zip(names, call.args, strict=False))
    kwargs = {name: plain(name, value) for name, value in call.kwargs.items()}
    return call._replace(args=args, kwargs=kwargs)


def _spec(node: ast.expr, text: str) -> Call | Pipe:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _pipe(_spec(node.left, text), _spec(node.right, text))
    if isinstance(node, ast.Name):
        return Call(node.id, (), {}, text, node.col_offset)
    if isinstance(node, ast.Constant) and node.value is None:
        return Call("none", (), {}, text, node.col_offset)  # people write None for none
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if any(isinstance(a, ast.Starred) for a in node.args):
            raise _error(text, node.col_offset, "'*' is not allowed in a spec")
        kwargs = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise _error(text, node.col_offset, "'**' is not allowed in a spec")
            if keyword.arg in kwargs:
                raise _error(text, keyword.col_offset, f"{keyword.arg!r} stands twice")
            kwargs[keyword.arg] = _value(keyword.value, text)
        args = tuple(_value(a, text) for a in node.args)
        return Call(node.func.id, args, kwargs, text, node.col_offset)
    message = "expected a name such as top_k or top_k(keep=0.01)"
    raise _error(text, node.col_offset, message)


def _pipe(left: Call | Pipe, right: Call | Pipe) -> Pipe:
    """Nest to the right: in a | b | c, the values of a pass through b | c."""
    if isinstance(left, Pipe):
        return Pipe(left.left, _pipe(left.right, right))
    return Pipe(left, right)


_CONSTANTS = (int, float, str, bool, type(None))  # not bytes, complex or "..."


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, text)
        if isinstance(inner, int | float):
            return -inner
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(element, text) for element in node.elts)
    if isinstance(node, ast.Name | ast.Call | ast.BinOp):
        return _spec(node, text)
    raise _error(text, node.col_offset, "expected a number, a string, or a spec")


def _show(value: Any) -> str:
    """The shortest text that gives the same value again."""
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0")
    return str(value) if isinstance(value, Call | Pipe) else repr(value)


def _error(text: str, column: int, message: str) -> SpecError:
    return SpecError(f"{message}\n    {text}\n    {' ' * column}^")

"""The grammar of spec strings, parsed with Python's own parser and never evaluated::

    spec  := call | call "|" spec
    call  := NAME | NAME "(" arguments ")"
    value := number | "string" | True | False | None | [values] | (values) | spec

Every mistake is a `SpecError` that shows the text, a caret under the place, and what
would be right.
"""

import ast
import difflib
import numbers
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from jaxcomp.core.errors import UserError


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
    return _spec(node, text.strip())


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


def show(value: Any) -> str:
    """The shortest text that gives the same value again."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return repr(float(value)).removesuffix(".0")
    return str(value) if isinstance(value, Call | Pipe) else repr(value)


def _error(text: str, column: int, message: str) -> SpecError:
    error = SpecError(f"{message}\n    {text}\n    {' ' * column}^")
    error.placed = True
    return error

"""Annotations say which values an argument takes, for checks, messages and tests.

`bool`, `int`, `float`, `str`, `Literal[...]`, a class, `None`, and unions of these.
`Annotated[float, Range(above=0, most=1)]` has borders too, and `Sequence[...]` is a
list whose elements fit. Other generic types are not looked into: the factory does that.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from jaxcomp.specs.grammar import Call, Pipe, SpecError, meant

__all__ = ["Clip", "Count", "Positive", "Range", "Shown", "check", "kinds_of"]


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
      jaxcomp.specs.grammar.SpecError: bits is a whole number from 1 to 8, not 0
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

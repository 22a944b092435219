"""The units of axes: how their values and their ticks are written."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxcomp.runs.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)

__all__ = ["UNITS", "Unit", "Writing", "rounded", "tick_percent"]

Unit = Literal["bytes", "count", "number", "percent", "seconds", "times"]


class Writing(NamedTuple):
    """How the values of a unit are written."""

    value: Callable[[float], str]
    tick: Callable[[float], str]
    steps: tuple[float, ...] = (1, 2, 5, 10)  # of ticks, times a power of ten
    whole: bool = False  # no ticks between whole numbers


def rounded(value: float) -> str:
    """A number that is usually whole, with two digits where it is not.

    Example:
      >>> rounded(3.0), rounded(0.4347), rounded(12000.0)
      ('3', '0.43', '12,000')
    """
    return number_text(round(float(value), 2))


def tick_percent(fraction: float) -> str:
    """A fraction as a percentage with as few digits as it needs.

    Example:
      >>> tick_percent(0.9), tick_percent(0.9502)
      ('90 %', '95.02 %')
    """
    return f"{100 * fraction:.4g} %"


def _tick_number(value: float) -> str:
    return number_text(float(f"{value:.10g}"))


def _tick_seconds(seconds: float) -> str:
    """Ticks are whole minutes or hours where they are large.

    Example:
      >>> [_tick_seconds(x) for x in (0.5, 30, 120, 5400, 7200)]
      ['500 ms', '30 s', '2 min', '1 h 30 min', '2 h']
    """
    if seconds >= 60 and seconds % 60 == 0:
        hours, minutes = divmod(int(seconds) // 60, 60)
        parts = [f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (minutes > 0)
        return " ".join(parts)
    return seconds_text(seconds)


def _or_zero(text: Callable[[float], str]) -> Callable[[float], str]:
    # Zero has no unit, so it fits in with any that the other ticks have.
    return lambda value: text(value) if value else "0"


UNITS: dict[Unit, Writing] = {
    "bytes": Writing(bytes_text, _or_zero(bytes_text)),
    "count": Writing(rounded, _tick_number, whole=True),
    "number": Writing(number_text, _tick_number),
    "percent": Writing(percent_text, _or_zero(tick_percent)),
    "seconds": Writing(seconds_text, _or_zero(_tick_seconds)),
    "times": Writing(times_text, _or_zero(times_text)),
}

"""Plots as data: units, axes, scales."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxcomp.core.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)

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


class Axis(NamedTuple):
    """One axis of a panel."""

    title: str
    unit: Unit
    log: bool = False
    # Where it ends although there are larger values, such as the loss of a run that
    # diverged, beside which all others would be a flat line.
    most: float = float("inf")


class Series(NamedTuple):
    """One curve, or points; the arrays have one entry for each point, all finite."""

    key: str  # the same in all plots of a page
    label: str
    slot: int  # its colour and dashes
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray  # of a band around the curve; y itself where there is none
    high: np.ndarray
    points: bool = False  # that are not joined by a line
    short: str = ""  # the label where there is little room; "": there is none


class Reference(NamedTuple):
    """A dashed line that says what a value means."""

    at: float  # of the vertical axis
    text: str


class Panel(NamedTuple):
    """Curves over one horizontal axis."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    references: Sequence[Reference] = ()
    # Points through which a line without a label goes, such as the best there is.
    front: Sequence[tuple[float, float]] = ()


class Plot(NamedTuple):
    """Panels side by side, with one title."""

    title: str
    caption: str
    panels: Sequence[Panel]
    # A label for the switch to the other scale of the vertical axes; "" for none.
    switch: str = ""
    wide: bool = False  # larger panels, where one or two stand alone


def drawable(panel: Panel) -> list[Series]:
    """The series of a panel without the points that its axes cannot show.

    Example:
      >>> y = np.array([0.0, 1.0])
      >>> one = Series("a", "a", 0, np.array([1.0, 2.0]), y, y, y)
      >>> axes = Axis("step", "count"), Axis("loss", "number", log=True)
      >>> [series.x.tolist() for series in drawable(Panel(*axes, [one]))]
      [[2.0]]
    """
    found = []
    for series in panel.series:
        seen = shown(panel, series)
        if seen.any():
            low = np.where(series.low > 0, series.low, series.y)
            low = low if panel.y.log else series.low
            arrays = (series.x, series.y, low, series.high)
            x, y, low, high = (values[seen] for values in arrays)
            found.append(series._replace(x=x, y=y, low=low, high=high))
    return found


def shown(panel: Panel, series: Series) -> np.ndarray:
    """Which points its panel can show: on logarithmic axes those above 0."""
    seen = np.isfinite(series.x) & np.isfinite(series.y)
    if panel.x.log:
        seen &= series.x > 0
    if panel.y.log:
        seen &= series.y > 0
    return seen


# Steps of ticks of durations: half a minute, five minutes, half an hour, six hours.
_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600)
# A flat curve stands in the middle of a range of this share of its height.
_FLAT = 0.2


class Scale(NamedTuple):
    """From values to places between 0 and 1."""

    low: float
    high: float
    log: bool = False

    def __call__(self, values: np.ndarray | float) -> np.ndarray:
        """Where values lie; outside of the range below 0 or above 1.

        Example:
          >>> Scale(1, 100, log=True)(np.array([1, 10, 1000])).round(3).tolist()
          [0.0, 0.5, 1.5]
        """
        x, low, high = np.asarray(values, float), self.low, self.high
        if self.log:
            x, low, high = np.log(x), math.log(low), math.log(high)
        return (x - low) / (high - low)


def scales_of(panel: Panel) -> tuple[Scale, Scale]:
    """The horizontal and the vertical scale of a panel."""
    series = drawable(panel)
    across = [one.x for one in series]
    upwards = [part for one in series for part in (one.y, one.low, one.high)]
    level = [line.at for line in panel.references]
    upwards.append(np.array(level))
    x, y = _limits(panel.x, across), _limits(panel.y, upwards)
    x, y = _with_room(x, 0.02), _with_room(y, 0.05)
    if level and not y.log:  # its text stands above it
        y = y._replace(high=max(y.high, max(level) + 0.12 * (y.high - y.low)))
    return x, y


def ticks(axis: Axis, scale: Scale, most: int) -> list[float]:
    """Round values inside a scale, `most` of them or a few less.

    Example:
      >>> ticks(Axis("loss", "number"), Scale(0, 2.3), 6)
      [0.0, 0.5, 1.0, 1.5, 2.0]
      >>> ticks(Axis("epoch", "count"), Scale(0.9, 2.1), 6)
      [1.0, 2.0]
      >>> ticks(Axis("time", "seconds"), Scale(0, 200), 5)
      [0.0, 60.0, 120.0, 180.0]
      >>> ticks(Axis("loss", "number", log=True), Scale(0.02, 3, log=True), 5)
      [0.03, 0.1, 0.3, 1.0, 3.0]
    """
    if scale.log:
        return _log_ticks(scale, most)
    step = _step(axis, (scale.high - scale.low) / most)
    first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def thinned(places: Sequence[float], room: Sequence[float]) -> list[int]:
    """Which of some labels to keep so that no two overlap, in order.

    Args:
      places: of their middles, ascending.
      room: that each needs.

    Example:
      >>> thinned([0, 10, 20, 40], [12, 12, 12, 12])
      [0, 2, 3]
    """
    kept: list[int] = []
    for i, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= (room[i] + room[kept[-1]]) / 2:
            kept.append(i)
    return kept


def _limits(axis: Axis, parts: list[np.ndarray]) -> Scale:
    values = np.concatenate(parts) if parts else np.array([0.0, 1.0])
    values = values[np.isfinite(values) & ((values > 0) | (not axis.log))]
    low, high = (values.min(), values.max()) if values.size else (1.0, 10.0)
    if not axis.log:
        high = min(high, axis.most)
    # Means of equal numbers differ in their last digits.
    if not high - low > 1e-6 * max(abs(low), abs(high)):
        pad = _FLAT * (abs(low) or 1.0)
        low, high = (low / 2, low * 2) if axis.log else (low - pad, low + pad)
    return Scale(float(low), float(high), axis.log)


def _with_room(scale: Scale, share: float) -> Scale:
    """A little more on both sides; what is never negative does not begin below 0."""
    low, high = scale.low, scale.high
    if scale.log:
        factor = (high / low) ** share
        return scale._replace(low=low / factor, high=high * factor)
    pad = share * (high - low)
    floor = 0.0 if 0 <= low <= 0.3 * high else low - pad
    return scale._replace(low=floor, high=high + pad)


def _step(axis: Axis, wanted: float) -> float:
    """The smallest round distance that is not below the one that is wanted."""
    if axis.unit == "seconds" and wanted > 1:
        found = [step for step in _SECONDS if step >= wanted]
        if found:
            return float(found[0])
    power = 10.0 ** math.floor(math.log10(wanted))
    rounds = UNITS[axis.unit].steps
    step = next(r * power for r in rounds if r * power >= wanted * (1 - 1e-9))
    return max(1.0, step) if UNITS[axis.unit].whole else step


def _log_ticks(scale: Scale, most: int) -> list[float]:
    low, high = math.log10(scale.low), math.log10(scale.high)
    for digits in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [float(f"{d}e{p}") for p in powers for d in digits]
        inside = [v for v in found if scale.low <= v <= scale.high]
        if len(inside) <= most:
            return inside or [float(f"{math.sqrt(scale.low * scale.high):.2g}")]
    apart = math.ceil(len(inside) / most)
    return [v for v in inside if round(math.log10(v)) % apart == 0]

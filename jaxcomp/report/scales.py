"""Scales of axes: their range, their ticks, and where a value lies on them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.plot import Axis, Panel, drawable
from jaxcomp.report.units import UNITS

__all__ = ["Scale", "scales_of", "thinned", "ticks"]

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

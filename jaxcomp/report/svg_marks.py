"""The parts of an SVG plot that stand for data: curves, points and their names."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jaxcomp.report.labels import Box, apart, beside, cut
from jaxcomp.report.plot import Panel, Series, shown
from jaxcomp.report.scales import Scale

__all__ = [
    "CHARACTER",
    "Area",
    "draw_names",
    "draw_series",
    "name_room",
    "slot_class",
    "text_at",
]

COLOURS = 8
CHARACTER, LINE = 6.7, 15  # the width of a character and the height of a line
_SPARE = 3
_MOST_NAMES = 6  # at the ends of curves; with more, the legend tells them apart
_MOST_CHARACTERS = 14


class Area(NamedTuple):
    """Where the curves of an element are, and the scales of its axes."""

    box: Box
    across: Scale
    upwards: Scale

    def x(self, values: np.ndarray | float) -> np.ndarray:
        return self.box.x + self.box.width * self.across(values)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        return self.box.y + self.box.height * (1 - self.upwards(values))


def slot_class(slot: int) -> str:
    """The classes of a series' colour and dashes; with more than 8, dashes differ.

    Example:
      >>> slot_class(1), slot_class(9)
      ('s1 d0', 's1 d1')
    """
    return f"s{slot % COLOURS} d{slot // COLOURS % 3}"


def draw_series(panel: Panel, series: Sequence[Series], area: Area) -> str:
    """Bands, curves and points, in an element of their own that cuts what leaves it."""
    x, y, width, height = area.box
    frame = f"{x - _SPARE:.1f} {y - _SPARE:.1f} "
    frame += f"{width + 2 * _SPARE:.1f} {height + 2 * _SPARE:.1f}"
    places = zip(("x", "y", "width", "height"), frame.split(), strict=True)
    words = " ".join(f'{name}="{value}"' for name, value in places)
    rows = {one.key: np.flatnonzero(shown(panel, one)) for one in panel.series}
    drawn = [_front(panel, area)] if len(panel.front) else []
    drawn += [_series(one, rows[one.key], area) for one in series]
    return f'<svg {words} viewBox="{frame}">{"".join(drawn)}</svg>'


def _series(one: Series, rows: np.ndarray, area: Area) -> str:
    x, y, low, high = area.x(one.x), area.y(one.y), area.y(one.low), area.y(one.high)
    key = f'data-key="{escape(one.key)}" data-label="{escape(_short(one))}"'
    whole = rows.size == rows[-1] + 1 if rows.size else True
    places = "" if whole else f' data-rows="{" ".join(map(str, rows))}"'
    has_band = bool(np.any(one.high > one.low))
    parts = []
    if one.points:
        if has_band:
            ends = zip(x, low, high, strict=True)
            bars = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in ends)
            parts.append(f'<path class="bar" d="{bars}"/>')
    elif has_band:
        there = _path(x, high)
        back = _path(x[::-1], low[::-1]).replace("M", "L", 1)
        parts.append(f'<path class="band" d="{there}{back}Z"/>')
    kind = "dots" if one.points else "line"
    parts.append(f'<path class="{kind}" d="{_path(x, y, one.points)}"/>')
    if not one.points and one.x.size <= 12:  # single points are invisible in a line
        parts.append(f'<path class="dots" d="{_path(x, y, True)}"/>')
    return (
        f'<g class="series {slot_class(one.slot)}" {key}{places}>{"".join(parts)}</g>'
    )


def _front(panel: Panel, area: Area) -> str:
    steps = np.array(panel.front, float)
    x, y = area.x(steps[:, 0]), area.y(steps[:, 1])
    turns = "".join(f"H{a:.1f}V{b:.1f}" for a, b in zip(x[1:], y[1:], strict=True))
    right = f"H{area.box.x + area.box.width:.1f}"
    return f'<path class="front" d="M{x[0]:.1f} {y[0]:.1f}{turns}{right}"/>'


def _path(x: np.ndarray, y: np.ndarray, dots: bool = False) -> str:
    # What lies far outside is cut anyway, and huge numbers are no valid coordinates.
    places = np.clip(np.stack([x, y], axis=1), -1e4, 1e4)
    if dots:  # a line of no length has a round end on each side
        return "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def name_room(series: Sequence[Series]) -> float:
    """The width that names at the ends of curves take."""
    if not _has_end_names(series):
        return 0.0
    return 6 + CHARACTER * max(len(_short(one)) for one in series)


def _has_end_names(series: Sequence[Series]) -> bool:
    is_line = not any(one.points for one in series)
    is_short = all(len(_short(one)) <= _MOST_CHARACTERS for one in series)
    return is_line and is_short and 1 < len(series) <= _MOST_NAMES


def _short(one: Series) -> str:
    return one.short or one.label


def draw_names(series: Sequence[Series], area: Area, width: float) -> list[str]:
    """The names of curves at their ends, and of points beside them.

    Args:
      series: of a panel.
      area: where it is.
      width: of the whole element.
    """
    box, parts = area.box, []
    if _has_end_names(series):
        wanted = [float(area.y(one.y[-1])) for one in series]
        heights = apart(wanted, LINE, box.y, box.y + box.height)
        for one, y in zip(series, heights, strict=True):
            x = box.x + box.width + 8
            parts.append(_end_name(one, x, float(y) + 4, _short(one)))
    elif any(one.points for one in series):
        dots = [(float(area.x(one.x[0])), float(area.y(one.y[0]))) for one in series]
        taken = [Box(x - 5, y - 5, 10, 10) for x, y in dots]
        whole = Box(box.x, box.y, width - box.x, box.height)
        for one, at in zip(series, dots, strict=True):
            text = cut(one.label if box.width > 400 else _short(one), 40)
            room = Box(0, 0, CHARACTER * len(text), LINE)
            place = beside(at, room, taken, whole)
            taken.append(place)
            left = place.x >= at[0]
            x = place.x if left else place.x + place.width
            parts.append(
                _end_name(one, x, place.y + 12, text, "start" if left else "end")
            )
    return parts


def _end_name(one: Series, x: float, y: float, text: str, anchor: str = "start") -> str:
    words = f'class="end {slot_class(one.slot)}" data-key="{escape(one.key)}"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {words} {place}>{escape(text)}</text>"


def text_at(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """A text element; its class says what kind of text it is."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'

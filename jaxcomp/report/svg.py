"""Draw a panel as an SVG element of a page.

Colours are classes that the page's style sheet defines for light and dark, and the
text is in the page's font. So an element holds shapes alone.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jaxcomp.report.labels import Box, apart, beside, cut
from jaxcomp.report.plot import Axis, Panel, Series, drawable, shown
from jaxcomp.report.scales import Scale, scales_of, thinned, ticks
from jaxcomp.report.units import UNITS

__all__ = ["NARROW", "WHOLE", "WIDE", "Size", "described", "draw_svg", "slot_class"]


class Size(NamedTuple):
    """Of an element, in the pixels of a page that shows it unscaled."""

    width: int
    height: int


# Three of the narrow ones stand side by side on a desktop, one on a phone; text is
# then about as large as it is drawn.
NARROW, WIDE, WHOLE = Size(360, 260), Size(610, 350), Size(1120, 380)
COLOURS = 8
_FONT, _CHARACTER, _LINE = 12, 6.7, 15
_TOP, _BOTTOM, _RIGHT, _SPARE = 30, 46, 14, 3
_MOST_LABELS = 6  # at the ends of curves; with more, the legend tells them apart
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


def draw_svg(panel: Panel, size: Size = NARROW, **attributes: str) -> str:
    """The element of a panel.

    Args:
      panel: to draw.
      size: of the element.
      **attributes: further ones of the element, by their names.

    Example:
      >>> from jaxcomp.report.plot import Axis
      >>> ends = np.array([1.0, 2.0])
      >>> curve = Series("a", "<a>", 0, ends, ends, ends, ends)
      >>> axes = Axis("epoch", "count"), Axis("loss", "number")
      >>> svg = draw_svg(Panel(*axes, [curve]))
      >>> "<a>" in svg, "&lt;a&gt;" in svg
      (False, True)
    """
    series = drawable(panel)
    head = {
        "viewBox": f"0 0 {size.width} {size.height}",
        "role": "img",
        "aria-label": described(panel),
        **attributes,
    }
    words = " ".join(f'{name}="{escape(text)}"' for name, text in head.items())
    if not series:
        middle = _text(size.width / 2, size.height / 2, "was not recorded", "middle")
        title = _text(0, 14, panel.y.title, "start", "title")
        return f"<svg {words}>{title}{middle}</svg>"
    area = _area(panel, series, size)
    parts = [
        _grid(panel, area, size),
        *(_reference(line.at, line.upright, area) for line in panel.references),
        _inside(panel, series, area),
        *_reference_texts(panel, area),
        *_labels(panel, series, area, size),
    ]
    return f"<svg {words}>{''.join(parts)}</svg>"


def described(panel: Panel) -> str:
    """What a panel shows, in words.

    Example:
      >>> described(Panel(Axis("epoch", "count"), Axis("loss", "number"), []))
      'loss over epoch: nothing was recorded'
    """
    write = UNITS[panel.y.unit].value
    parts = []
    for one in drawable(panel):
        first, last = write(float(one.y[0])), write(float(one.y[-1]))
        way = last if one.y.size == 1 else f"from {first} to {last}"
        parts.append(f"{one.label} {way}".strip())
    shown = "; ".join(parts) or "nothing was recorded"
    return f"{panel.y.title} over {panel.x.title}: {shown}"


def slot_class(slot: int) -> str:
    """The classes of a series' colour and dashes; with more than 8, dashes differ.

    Example:
      >>> slot_class(1), slot_class(9)
      ('s1 d0', 's1 d1')
    """
    return f"s{slot % COLOURS} d{slot // COLOURS % 3}"


def _area(panel: Panel, series: Sequence[Series], size: Size) -> Area:
    across, upwards = scales_of(panel)
    texts = [text for _, text in _ticks(panel.y, upwards, _most_rows(size))]
    left = 12 + _CHARACTER * max(map(len, texts), default=1)
    right = _RIGHT
    if _has_end_labels(series):
        longest = max(len(_short(one)) for one in series)
        right = _RIGHT + 6 + _CHARACTER * longest
    width, height = size.width - left - right, size.height - _TOP - _BOTTOM
    return Area(Box(left, _TOP, width, height), across, upwards)


def _most_rows(size: Size) -> int:
    return max(3, (size.height - _TOP - _BOTTOM) // 30)


def _ticks(axis: Axis, scale: Scale, most: int) -> list[tuple[float, str]]:
    write = UNITS[axis.unit].tick
    return [(value, write(value)) for value in ticks(axis, scale, most)]


def _grid(panel: Panel, area: Area, size: Size) -> str:
    box, parts = area.box, []
    right, bottom = box.x + box.width, box.y + box.height
    for value, text in _ticks(panel.y, area.upwards, _most_rows(size)):
        y = float(area.y(value))
        parts.append(f'<path class="grid" d="M{box.x:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(_text(box.x - 6, y + 4, text, "end", "tick"))
    marks = _ticks(panel.x, area.across, int(box.width // 50))
    places = [float(area.x(value)) for value, _ in marks]
    room = [_CHARACTER * len(text) + 10 for _, text in marks]
    for i in thinned(places, room):
        x, half = places[i], room[i] / 2
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom:.1f}v4"/>')
        x = min(x, size.width - half)
        parts.append(_text(x, bottom + 17, marks[i][1], "middle", "tick"))
    parts.append(f'<path class="axis" d="M{box.x:.1f} {bottom:.1f}H{right:.1f}"/>')
    parts.append(_text(right, size.height - 8, panel.x.title, "end", "name"))
    parts.append(_text(0, 14, _heading(panel, area), "start", "title"))
    return "".join(parts)


def _heading(panel: Panel, area: Area) -> str:
    """What the vertical axis shows, and how far curves go that leave it."""
    highest = max(float(np.max(one.y)) for one in drawable(panel))
    if highest <= area.upwards.high:
        return panel.y.title
    return f"{panel.y.title}, cut: up to {UNITS[panel.y.unit].value(highest)}"


def _inside(panel: Panel, series: Sequence[Series], area: Area) -> str:
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
    key = f'data-key="{escape(one.key)}"'
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


def _reference(at: float, upright: bool, area: Area) -> str:
    box = area.box
    if upright:
        d = f"M{float(area.x(at)):.1f} {box.y:.1f}v{box.height:.1f}"
    else:
        d = f"M{box.x:.1f} {float(area.y(at)):.1f}h{box.width:.1f}"
    return f'<path class="reference" d="{d}"/>'


def _reference_texts(panel: Panel, area: Area) -> list[str]:
    box, parts = area.box, []
    for line in panel.references:
        if line.upright:
            x = float(area.x(line.at))
            is_right = x > box.x + box.width / 2
            anchor, x = ("end", x - 5) if is_right else ("start", x + 5)
            parts.append(_text(x, box.y + box.height - 8, line.text, anchor, "tick"))
        else:
            y = float(area.y(line.at))
            y = y - 6 if y > box.y + 20 else y + 16
            right = box.x + box.width - 4
            parts.append(_text(right, y, line.text, "end", "tick"))
    return parts


def _has_end_labels(series: Sequence[Series]) -> bool:
    is_line = not any(one.points for one in series)
    is_short = all(len(_short(one)) <= _MOST_CHARACTERS for one in series)
    return is_line and is_short and 1 < len(series) <= _MOST_LABELS


def _short(one: Series) -> str:
    return one.short or one.label


def _labels(
    panel: Panel, series: Sequence[Series], area: Area, size: Size
) -> list[str]:
    box, parts = area.box, []
    if _has_end_labels(series):
        wanted = [float(area.y(one.y[-1])) for one in series]
        heights = apart(wanted, _LINE, box.y, box.y + box.height)
        for one, y in zip(series, heights, strict=True):
            x = box.x + box.width + 8
            parts.append(_end_label(one, x, float(y) + 4, _short(one)))
    elif any(one.points for one in series):
        dots = [(float(area.x(one.x[0])), float(area.y(one.y[0]))) for one in series]
        taken = [Box(x - 5, y - 5, 10, 10) for x, y in dots]
        whole = Box(box.x, box.y, size.width - box.x, box.height)
        for one, at in zip(series, dots, strict=True):
            text = cut(one.label if size.width > NARROW.width else _short(one), 40)
            room = Box(0, 0, _CHARACTER * len(text), _LINE)
            place = beside(at, room, taken, whole)
            taken.append(place)
            left = place.x >= at[0]
            x = place.x if left else place.x + place.width
            parts.append(
                _end_label(one, x, place.y + 12, text, "start" if left else "end")
            )
    return parts


def _end_label(
    one: Series, x: float, y: float, text: str, anchor: str = "start"
) -> str:
    words = f'class="end {slot_class(one.slot)}" data-key="{escape(one.key)}"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {words} {place}>{escape(text)}</text>"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'

"""Draw a panel as an SVG element of a page.

Colours are classes that the page's style sheet defines for light and dark, and the
text is in the page's font. So an element holds shapes alone.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jaxcomp.report.labels import Box
from jaxcomp.report.plot import Axis, Panel, Series, drawable
from jaxcomp.report.scales import Scale, scales_of, thinned, ticks
from jaxcomp.report.svg_marks import (
    CHARACTER,
    Area,
    draw_names,
    draw_series,
    name_room,
    text_at,
)
from jaxcomp.report.units import UNITS

__all__ = ["NARROW", "WHOLE", "WIDE", "Size", "described", "draw_svg"]


class Size(NamedTuple):
    """Of an element, in the pixels of a page that shows it unscaled."""

    width: int
    height: int


# Three of the narrow ones stand side by side on a desktop, one on a phone; text is
# then about as large as it is drawn.
NARROW, WIDE, WHOLE = Size(360, 260), Size(610, 350), Size(1120, 380)
_TOP, _BOTTOM, _RIGHT = 30, 46, 14


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
        middle = text_at(size.width / 2, size.height / 2, "was not recorded", "middle")
        title = text_at(0, 14, panel.y.title, "start", "title")
        return f"<svg {words}>{title}{middle}</svg>"
    area = _area(panel, series, size)
    parts = [
        _grid(panel, area, size),
        *(_reference(line.at, area) for line in panel.references),
        draw_series(panel, series, area),
        *_reference_texts(panel, area),
        *draw_names(series, area, size.width),
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


def _area(panel: Panel, series: Sequence[Series], size: Size) -> Area:
    across, upwards = scales_of(panel)
    texts = [text for _, text in _ticks(panel.y, upwards, _most_rows(size))]
    left = 12 + CHARACTER * max(map(len, texts), default=1)
    right = _RIGHT + name_room(series)
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
        parts.append(text_at(box.x - 6, y + 4, text, "end"))
    marks = _ticks(panel.x, area.across, int(box.width // 50))
    places = [float(area.x(value)) for value, _ in marks]
    room = [CHARACTER * len(text) + 10 for _, text in marks]
    for i in thinned(places, room):
        x, half = places[i], room[i] / 2
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom:.1f}v4"/>')
        x = min(x, size.width - half)
        parts.append(text_at(x, bottom + 17, marks[i][1], "middle"))
    parts.append(f'<path class="axis" d="M{box.x:.1f} {bottom:.1f}H{right:.1f}"/>')
    parts.append(text_at(right, size.height - 8, panel.x.title, "end", "name"))
    parts.append(text_at(0, 14, _heading(panel, area), "start", "title"))
    return "".join(parts)


def _heading(panel: Panel, area: Area) -> str:
    """What the vertical axis shows, and how far curves go that leave it."""
    highest = max(float(np.max(one.y)) for one in drawable(panel))
    if highest <= area.upwards.high:
        return panel.y.title
    return f"{panel.y.title}, cut: up to {UNITS[panel.y.unit].value(highest)}"


def _reference(at: float, area: Area) -> str:
    d = f"M{area.box.x:.1f} {float(area.y(at)):.1f}h{area.box.width:.1f}"
    return f'<path class="reference" d="{d}"/>'


def _reference_texts(panel: Panel, area: Area) -> list[str]:
    right = area.box.x + area.box.width - 4
    return [
        text_at(right, float(area.y(line.at)) - 6, line.text, "end")
        for line in panel.references
    ]

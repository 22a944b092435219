"""Plots drawn as SVG."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from jaxcomp.report import plot
from jaxcomp.report.plot import UNITS, Axis, Panel, Scale, Series

COLOURS = 8  # with more series, dashes differ too
CHARACTER, LINE = 6.7, 15  # the width of a character and the height of a line
_SPARE = 3
_MOST_NAMES = 6  # at the ends of curves; with more, the legend tells them apart
_MOST_CHARACTERS = 14


class Box(NamedTuple):
    """A rectangle: its left upper corner, and its size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """Whether two rectangles overlap."""
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and (
            self.y < other.y + other.height and other.y < self.y + self.height
        )


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


class Canvas(NamedTuple):
    """Of an element, in the pixels of a page that shows it unscaled."""

    width: int
    height: int


# Three of the narrow ones stand side by side on a desktop, one on a phone; text is
# then about as large as it is drawn.
NARROW, WIDE, WHOLE = Canvas(360, 260), Canvas(610, 350), Canvas(1120, 380)
_TOP, _BOTTOM, _RIGHT = 30, 46, 14


def draw_svg(panel: Panel, size: Canvas = NARROW, **attributes: str) -> str:
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
    series = plot.drawable(panel)
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
    for one in plot.drawable(panel):
        first, last = write(float(one.y[0])), write(float(one.y[-1]))
        way = last if one.y.size == 1 else f"from {first} to {last}"
        parts.append(f"{one.label} {way}".strip())
    shown = "; ".join(parts) or "nothing was recorded"
    return f"{panel.y.title} over {panel.x.title}: {shown}"


def _area(panel: Panel, series: Sequence[Series], size: Canvas) -> Area:
    across, upwards = plot.scales_of(panel)
    texts = [text for _, text in _ticks(panel.y, upwards, _most_rows(size))]
    left = 12 + CHARACTER * max(map(len, texts), default=1)
    right = _RIGHT + name_room(series)
    width, height = size.width - left - right, size.height - _TOP - _BOTTOM
    return Area(Box(left, _TOP, width, height), across, upwards)


def _most_rows(size: Canvas) -> int:
    return max(3, (size.height - _TOP - _BOTTOM) // 30)


def _ticks(axis: Axis, scale: Scale, most: int) -> list[tuple[float, str]]:
    write = UNITS[axis.unit].tick
    return [(value, write(value)) for value in plot.ticks(axis, scale, most)]


def _grid(panel: Panel, area: Area, size: Canvas) -> str:
    box, parts = area.box, []
    right, bottom = box.x + box.width, box.y + box.height
    for value, text in _ticks(panel.y, area.upwards, _most_rows(size)):
        y = float(area.y(value))
        parts.append(f'<path class="grid" d="M{box.x:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(text_at(box.x - 6, y + 4, text, "end"))
    marks = _ticks(panel.x, area.across, int(box.width // 50))
    places = [float(area.x(value)) for value, _ in marks]
    room = [CHARACTER * len(text) + 10 for _, text in marks]
    for i in plot.thinned(places, room):
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
    highest = max(float(np.max(one.y)) for one in plot.drawable(panel))
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


def draw_series(panel: Panel, series: Sequence[Series], area: Area) -> str:
    """Bands, curves and points, in an element of their own that cuts what leaves it."""
    x, y, width, height = area.box
    sides = (x - _SPARE, y - _SPARE, width + 2 * _SPARE, height + 2 * _SPARE)
    x, y, width, height = (f"{side:.1f}" for side in sides)
    words = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    rows = {one.key: np.flatnonzero(plot.shown(panel, one)) for one in panel.series}
    drawn = [_front(panel, area)] if len(panel.front) else []
    drawn += [_series(one, rows[one.key], area) for one in series]
    frame = f"{x} {y} {width} {height}"
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
        heights = spread_labels(wanted, LINE, box.y, box.y + box.height)
        for one, y in zip(series, heights, strict=True):
            x = box.x + box.width + 8
            parts.append(_end_name(one, x, float(y) + 4, _short(one)))
    else:
        series = [one for one in series if one.points]
        dots = [(float(area.x(one.x[0])), float(area.y(one.y[0]))) for one in series]
        taken = [Box(x - 5, y - 5, 10, 10) for x, y in dots]
        whole = Box(box.x, box.y, width - box.x, box.height)
        for one, at in zip(series, dots, strict=True):
            text = cut(one.label if box.width > 400 else _short(one), 40)
            room = Box(0, 0, CHARACTER * len(text), LINE)
            place = beside(at, room, taken, whole)
            taken.append(place)
            if place.x >= at[0]:
                parts.append(_end_name(one, place.x, place.y + 12, text))
            else:
                right = place.x + place.width
                parts.append(_end_name(one, right, place.y + 12, text, "end"))
    return parts


def text_at(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """A text element; its class says what kind of text it is."""
    return _text(f'class="{kind}"', x, y, anchor, text)


def _end_name(one: Series, x: float, y: float, text: str, anchor: str = "start") -> str:
    words = f'class="end {slot_class(one.slot)}" data-key="{escape(one.key)}"'
    return _text(words, x, y, anchor, text)


def _text(words: str, x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {words} {place}>{escape(text)}</text>"


def spread_labels(
    heights: Sequence[float], size: float, low: float, high: float
) -> np.ndarray:
    """Heights of labels of one size, moved so that no two overlap.

    Args:
      heights: that are wanted.
      size: of each label.
      low: the least height.
      high: the largest.

    Example:
      >>> spread_labels([10, 11, 40], 6, 0, 50).tolist()
      [7.5, 13.5, 40.0]
    """
    wanted = np.clip(np.asarray(heights, float), low, high)
    order = np.argsort(wanted, kind="stable")
    # Groups of labels that touch each other stand around the mean of what they want.
    groups: list[list[float]] = []
    for height in wanted[order]:
        groups.append([float(height)])
        while len(groups) > 1 and _top(groups[-2], size) > _bottom(groups[-1], size):
            last = groups.pop()
            groups[-1] += last
    placed: list[float] = []
    for group in groups:
        first = _bottom(group, size) + size / 2
        placed += [first + i * size for i in range(len(group))]
    found = np.array(placed)
    if found.size:
        found -= max(0.0, found[-1] - high)
        found += max(0.0, low - found[0])
    back = np.empty_like(found)
    back[order] = found
    return back


def beside(at: tuple[float, float], box: Box, taken: Sequence[Box], area: Box) -> Box:
    """A place for the label of a point: where it is free, inside of an area.

    Args:
      at: the point.
      box: of the label; its corner is of no meaning.
      taken: what it should not cover.
      area: in which it should stay.
    """
    x, y, w, h = *at, box.width, box.height
    places = [
        Box(x + 9, y - h / 2, w, h),
        Box(x - 9 - w, y - h / 2, w, h),
        Box(x - w / 2, y - 9 - h, w, h),
        Box(x - w / 2, y + 9, w, h),
        *(Box(x + 9, y - h / 2 + d * h, w, h) for d in (-1, 1, -2, 2)),
        *(Box(x - 9 - w, y - h / 2 + d * h, w, h) for d in (-1, 1, -2, 2)),
    ]

    def cost(place: Box) -> float:
        out = max(0.0, area.x - place.x, place.x + w - area.x - area.width)
        out += max(0.0, area.y - place.y, place.y + h - area.y - area.height)
        return 10 * out + 100 * sum(place.meets(other) for other in taken)

    return min(places, key=cost)


def _bottom(group: Sequence[float], size: float) -> float:
    return float(np.mean(group)) - size * len(group) / 2


def _top(group: Sequence[float], size: float) -> float:
    return float(np.mean(group)) + size * len(group) / 2


def cut(text: str, most: int) -> str:
    """A text of so many characters at most.

    Example:
      >>> cut("error_feedback", 8), cut("sign", 8)
      ('error_f…', 'sign')
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"

"""Draws a graph of workers: numbered circles, and lines as wide as their weights."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from jaxcomp.report.style import BLUE, FONT_SIZE, GREY, INK, SKY, look

__all__ = ["Layout", "Panel", "circle", "draw_graph", "grid", "hub", "two_columns"]

# Inches. A single panel is larger than each of several; of these, three share a row.
SINGLE, SMALL, HEAD, CAPTION, PAD = 4.6, 2.6, 0.62, 0.28, 0.12
EDGE = 1.15  # half the width of a panel in the units of positions
ACROSS = 3

Edge = tuple[int, int, float]  # source, destination, weight


class Layout(NamedTuple):
    """Where workers stand, and how a line is drawn that would cross a third worker."""

    positions: np.ndarray  # [n, 2] in -1 .. 1
    # "straight" nevertheless, "bend" towards the middle, or "cut" to a stub at each end
    crossing: str = "straight"


class Panel(NamedTuple):
    """One graph of a figure; an edge without its reverse becomes an arrow."""

    caption: str
    edges: Sequence[Edge]


def circle(workers: int) -> Layout:
    """All workers on a circle, clockwise from the top.

    Example:
      >>> circle(4).positions.round(3)[1].tolist()
      [1.0, 0.0]
    """
    return hub(1) if workers == 1 else Layout(_around(workers), "bend")


def hub(workers: int) -> Layout:
    """Worker 0 in the middle, the others around it."""
    return Layout(np.concatenate([np.zeros((1, 2)), _around(workers - 1)]))


def grid(rows: int, columns: int) -> Layout:
    """Workers row by row from the top; a torus closes where lines leave the grid."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    centred = np.stack([x - (columns - 1) / 2, (rows - 1) / 2 - y], axis=1)
    return Layout(2 * centred / max(rows, columns), "cut")


def two_columns(left: int, right: int) -> Layout:
    """The first workers on the left, the others on the right, from the top."""
    heights = [np.linspace(1, -1, count) for count in (left, right)]
    sides = np.repeat([-0.8, 0.8], [left, right])
    return Layout(np.stack([sides, np.concatenate(heights)], axis=1))


def draw_graph(
    title: str, note: str, layout: Layout, panels: Sequence[Panel]
) -> Figure:
    """Draw one panel for each round of communication.

    Args:
      title: of the figure.
      note: a line below the title.
      layout: where the workers stand.
      panels: the edges of each round.

    Returns:
      The figure.
    """
    side, caption = (SINGLE, 0.0) if len(panels) == 1 else (SMALL, CAPTION)
    across, down = min(len(panels), ACROSS), -(-len(panels) // ACROSS)
    tall = _half_height(layout.positions)
    inner, unit = side - 2 * PAD, (side - 2 * PAD) / (2 * EDGE)
    step = 2 * tall * unit + 2 * PAD + caption
    width = max(SINGLE, across * side)
    lines = textwrap.wrap(title, int(width * 10), break_on_hyphens=False)
    head = HEAD + 0.2 * (len(lines) - 1)
    height = head + down * step
    with look():
        figure = Figure(figsize=(width, height))
        bold: dict[str, Any] = {"size": FONT_SIZE + 1.5, "weight": "bold", "color": INK}
        left, top, below = PAD / width, 1 - PAD / height, 1 - (head - 0.24) / height
        figure.text(left, top, "\n".join(lines), va="top", **bold)
        figure.text(left, below, note, va="top", color=GREY)
        largest = max((e[2] for panel in panels for e in panel.edges), default=1.0)
        for k, panel in enumerate(panels):
            row, column = divmod(k, ACROSS)
            left = (width - across * side) / 2 + column * side + PAD
            bottom = height - head - (row + 1) * step + PAD
            size = (inner / width, 2 * tall * unit / height)
            axes = figure.add_axes((left / width, bottom / height, *size))
            axes.set(xlim=(-EDGE, EDGE), ylim=(-tall, tall))
            if panel.caption:
                axes.set_title(panel.caption, loc="center", size=FONT_SIZE, pad=4)
            _draw_panel(axes, layout, panel.edges, largest, 72 * unit)
    return figure


def _around(count: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(count) / max(1, count)
    return np.stack([np.sin(angles), np.cos(angles)], axis=1)


def _draw_panel(
    axes: Axes, layout: Layout, edges: Sequence[Edge], largest: float, points: float
) -> None:
    """Draw workers and lines; `points` is a unit of the positions in points."""
    axes.set_axis_off()
    at = layout.positions
    spacing = _spacing(at) * points
    radius = min(0.34 * spacing, 0.12 * points, 11)
    numbered = radius >= 5
    if not numbered:  # Small circles, so that lines between neighbours are visible.
        radius = max(0.2 * spacing, 1)

    weights = {(i, j): weight for i, j, weight in edges}
    # The more lines there are, the more transparent each of them is.
    alpha = float(np.clip(3.2 * len(at) / (len(edges) + 1), 0.3, 0.9))
    for (i, j), weight in weights.items():
        mutual = weights.get((j, i)) == weight
        if mutual and i > j:
            continue
        line: dict[str, Any] = {
            "arrowstyle": "-" if mutual else "-|>",
            "mutation_scale": 4 + 0.35 * radius,
            "linewidth": 0.5 + 1.5 * weight / largest,
            "color": SKY,
            "alpha": alpha,
            "shrinkA": radius,
            "shrinkB": radius + (0 if mutual else 1),
        }
        bend = 0.0 if mutual or (j, i) not in weights else 0.15
        if _crosses(at, i, j, 1.2 * radius / points):
            if layout.crossing == "cut":
                ends = {"shrinkB": 0, "arrowstyle": "-"}
                for away in _stubs(at, i, j):
                    axes.add_patch(FancyArrowPatch(*away, **(line | ends)))
                continue
            bend = _bend(at, i, j) if layout.crossing == "bend" else bend
        arc = f"arc3,rad={bend}"
        axes.add_patch(FancyArrowPatch(at[i], at[j], connectionstyle=arc, **line))
    edge = min(1.2, 0.3 * radius)
    axes.plot(*at.T, "o", color="white", mec=BLUE, ms=2 * radius, mew=edge)
    if numbered:
        size = radius * (0.95 if len(at) <= 100 else 0.7)
        middle: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
        for worker, (x, y) in enumerate(at):
            axes.text(x, y, str(worker), size=size, color=INK, **middle)


def _spacing(at: np.ndarray) -> float:
    """The distance of the two workers that are closest to each other."""
    distances = np.linalg.norm(at[:, None] - at[None], axis=2)
    return min(distances[~np.eye(len(at), dtype=bool)], default=0.6)


def _half_height(at: np.ndarray) -> float:
    """Half the height that a panel needs: less for flat grids, with room for stubs."""
    room = np.max(np.abs(at[:, 1])) + 0.5 * _spacing(at) + 0.05
    return float(np.clip(room, 0.2, EDGE))


def _crosses(at: np.ndarray, i: int, j: int, room: float) -> bool:
    """Whether a third worker stands within `room` of the straight line."""
    along = at[j] - at[i]
    share = np.clip((at - at[i]) @ along / (along @ along), 0, 1)
    distance = np.linalg.norm(at[i] + share[:, None] * along - at, axis=1)
    distance[[i, j]] = np.inf
    return bool(np.min(distance) < room)


def _bend(at: np.ndarray, i: int, j: int) -> float:
    """How much an arc bends to the middle: chords close to the rim bend most."""
    middle, (dx, dy) = (at[i] + at[j]) / 2, at[j] - at[i]
    inwards = np.sign(-middle @ np.array([dy, -dx]))
    return float(0.3 * inwards * np.linalg.norm(middle))


def _stubs(at: np.ndarray, i: int, j: int) -> list[tuple[Any, Any]]:
    """Short lines that leave both ends away from each other."""
    step = 0.5 * _spacing(at) * (at[j] - at[i]) / np.linalg.norm(at[j] - at[i])
    return [(at[i], at[i] - step), (at[j], at[j] + step)]

"""Draw a graph of workers into a picture file."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from jaxcomp.report.graph_layout import (
    EDGE,
    Edge,
    Graph,
    Layout,
    half_height,
    spacing,
    strokes,
)
from jaxcomp.report.style import BLUE, FONT_SIZE, GREY, INK, SKY, look

__all__ = ["draw_graph"]

# Inches. A single panel is larger than each of several; of these, three share a row.
SINGLE, SMALL, HEAD, CAPTION, PAD = 4.6, 2.6, 0.62, 0.28, 0.12
ACROSS = 3


def draw_graph(graph: Graph) -> Figure:
    """Draw one panel for each round of communication.

    Args:
      graph: its title, and a note that stands below the title.

    Returns:
      The figure.
    """
    title, note, layout, panels = graph
    side, caption = (SINGLE, 0.0) if len(panels) == 1 else (SMALL, CAPTION)
    across, down = min(len(panels), ACROSS), -(-len(panels) // ACROSS)
    tall = half_height(layout.positions)
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


def _draw_panel(
    axes: Axes, layout: Layout, edges: Sequence[Edge], largest: float, points: float
) -> None:
    """Draw workers and lines; `points` is a unit of the positions in points."""
    axes.set_axis_off()
    at = layout.positions
    between = spacing(at) * points
    radius = min(0.34 * between, 0.12 * points, 11)
    numbered = radius >= 5
    if not numbered:  # Small circles, so that lines between neighbours are visible.
        radius = max(0.2 * between, 1)

    # The more lines there are, the more transparent each of them is.
    alpha = float(np.clip(3.2 * len(at) / (len(edges) + 1), 0.3, 0.9))
    for stroke in strokes(layout, edges, 1.2 * radius / points):
        line: dict[str, Any] = {
            "arrowstyle": "-|>" if stroke.is_arrow else "-",
            "mutation_scale": 4 + 0.35 * radius,
            "linewidth": 0.5 + 1.5 * stroke.weight / largest,
            "color": SKY,
            "alpha": alpha,
            "shrinkA": radius,
            "shrinkB": 0 if stroke.is_stub else radius + stroke.is_arrow,
            "connectionstyle": f"arc3,rad={stroke.bend}",
        }
        axes.add_patch(FancyArrowPatch(*map(tuple, (stroke.start, stroke.end)), **line))
    edge = min(1.2, 0.3 * radius)
    axes.plot(*at.T, "o", color="white", mec=BLUE, ms=2 * radius, mew=edge)
    if numbered:
        size = radius * (0.95 if len(at) <= 100 else 0.7)
        middle: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
        for worker, (x, y) in enumerate(at):
            axes.text(x, y, str(worker), size=size, color=INK, **middle)

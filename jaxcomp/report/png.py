"""Plots drawn by Matplotlib."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from jaxcomp.report import svg
from jaxcomp.report.comparison import comparison_plots, find_runs
from jaxcomp.report.figures import Bars, group_runs, layers, time_of_a_step
from jaxcomp.report.graph import (
    EDGE,
    Drawing,
    Edge,
    GraphLayout,
    graph_of,
    half_height,
    spacing,
    strokes,
)
from jaxcomp.report.plot import (
    UNITS,
    Axis,
    Panel,
    Plot,
    Scale,
    drawable,
    scales_of,
    thinned,
    ticks,
)
from jaxcomp.report.run_folder import holder, read_any
from jaxcomp.report.run_page import run_plots
from jaxcomp.report.svg import BLUE, FONT_SIZE, GREY, INK, SKY, cut, look

# The colours of the slots, as those of the pages.
COLOURS = (
    *(svg.BLUE, svg.ORANGE, svg.GREEN, svg.PINK),
    *(svg.YELLOW, svg.SKY, svg.INK, svg.GREY),
)
_DASHES = ("solid", (0, (5, 3)), (0, (1.5, 2)))
# Inches.
_PANEL, _ROW, _LEFT, _BETWEEN, _RIGHT = 3.9, 2.9, 0.8, 0.75, 2.0
_HEAD, _FOOT, _GAP = 0.65, 0.6, 1.0
_CHARACTERS = 26  # of a label right of the panels


def draw_plots(plots: Sequence[Plot]) -> Figure:
    """Draw plots below each other, each as a row of panels.

    Args:
      plots: of equally many panels, or fewer than the first.
    """
    across, down = len(plots[0].panels), len(plots)
    width = _LEFT + across * (_PANEL + _BETWEEN) - _BETWEEN + _RIGHT
    height = down * (_HEAD + _ROW + _FOOT)
    with svg.look():
        figure = Figure(figsize=(width, height))
        for row, plot in enumerate(plots):
            top = height - row * (_HEAD + _ROW + _FOOT) - _HEAD
            bold = {"size": svg.FONT_SIZE + 2, "weight": "bold", "va": "top"}
            figure.text(_LEFT / width, (top + 0.55) / height, plot.title, **bold)
            for column, panel in enumerate(plot.panels):
                left = _LEFT + column * (_PANEL + _BETWEEN)
                box = (
                    left / width,
                    (top - _ROW) / height,
                    _PANEL / width,
                    _ROW / height,
                )
                _draw(figure.add_axes(box), panel, is_last=panel is plot.panels[-1])
    return figure


def draw_bars(bars: Bars) -> Figure:
    """Draw horizontal bars."""
    with svg.look():
        height = 1.0 + 0.3 * len(bars.rows)
        figure = Figure(figsize=(7.0, height))
        axes = figure.add_axes((0.36, 0.3 / height, 0.48, 1 - 0.8 / height))
        places = np.arange(len(bars.rows))
        axes.barh(places, [bar.value for bar in bars.rows], color=svg.BLUE)
        axes.set_yticks(places, [cut(bar.label, 34) for bar in bars.rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * bars.most)
        axes.xaxis.set_visible(False)
        axes.grid(visible=False)
        for place, bar in zip(places, bars.rows, strict=True):
            value = bar.value if np.isfinite(bar.value) else 0.0
            axes.text(value, float(place), f" {bar.text}", va="center_baseline")
        if np.isfinite(bars.at):
            axes.axvline(bars.at, color=svg.GREY, linestyle=_DASHES[1], lw=1)
        axes.set_title(bars.title)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Draw a figure into a file: SVG, PNG, or what else the file's name says."""
    with svg.look():
        figure.savefig(path, dpi=200, metadata={"Date": None})


def _draw(axes: Axes, panel: Panel, *, is_last: bool) -> None:
    x, y = scales_of(panel)
    for axis, scale, name, most in ((panel.x, x, "x", 6), (panel.y, y, "y", 7)):
        _set_axis(axes, axis, scale, name, most)
    axes.set_title(panel.y.title, size=svg.FONT_SIZE, weight="normal")
    axes.set_xlabel(panel.x.title)
    labels = []
    for one in drawable(panel):
        colour = COLOURS[one.slot % len(COLOURS)]
        dashes = _DASHES[one.slot // len(COLOURS) % len(_DASHES)]
        if one.points:
            reach = np.abs([one.y - one.low, one.high - one.y])
            axes.errorbar(one.x, one.y, reach, fmt="o", color=colour)
        else:
            marker = "o" if one.x.size <= 12 else ""
            axes.plot(one.x, one.y, color=colour, linestyle=dashes, marker=marker)
            axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.18, lw=0)
        text = cut(one.label, _CHARACTERS)
        labels.append(svg.EndLabel(text, float(one.y[-1]), colour))
    for line in panel.references:
        axes.axhline(line.at, color=svg.GREY, linestyle=_DASHES[1], lw=1)
        place, moved = (axes.get_xlim()[1], line.at), (-3, 3)
        axes.annotate(line.text, place, moved, textcoords="offset points", ha="right")
    if len(panel.front):
        steps = np.array(panel.front)
        axes.step(*steps.T, where="post", color=svg.GREY, linestyle=_DASHES[1], lw=1)
    if is_last and len(labels) > 1:
        svg.label_ends(axes, labels)


def _set_axis(axes: Axes, axis: Axis, scale: Scale, name: str, most: int) -> None:
    getattr(axes, f"set_{name}scale")("log" if scale.log else "linear")
    getattr(axes, f"set_{name}lim")(scale.low, scale.high)
    places, write = ticks(axis, scale, most), UNITS[axis.unit].tick
    if name == "x":  # long texts need more room than there is for so many
        at = [float(_PANEL * 72 * scale(value)) for value in places]
        kept = thinned(at, [6.0 * len(write(value)) + 8 for value in places])
        places = [places[i] for i in kept]
    one = getattr(axes, f"{name}axis")
    one.set_major_locator(FixedLocator(places))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


# Inches. A single panel is larger than each of several; of these, three share a row.
SINGLE, SMALL, HEAD, CAPTION, PAD = 4.6, 2.6, 0.62, 0.28, 0.12
ACROSS = 3


def draw_graph(graph: Drawing) -> Figure:
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
    axes: Axes,
    layout: GraphLayout,
    edges: Sequence[Edge],
    largest: float,
    points: float,
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


def write_pictures(folders: Sequence[Path], target: Path) -> list[Path]:
    """Write each plot of one run, or of several that are compared, into a folder.

    Args:
      folders: of the runs.
      target: made where it is missing; what is there stays, or is replaced.

    Returns:
      The written files.
    """
    # Matplotlib takes most of a second to import; only whoever draws pays for it.

    if len(folders) == 1:
        run = read_any(folders[0])
        figures = {name: draw_plots([p]) for name, p in run_plots(run).items()}
        bars = {"breakdown": time_of_a_step(run), "layers": layers(run)}
        figures |= {name: draw_bars(found) for name, found in bars.items() if found}
        graph = graph_of(run.environment.get("graph") or {}, holder([run]))
        figures |= {"graph": draw_graph(graph)} if graph else {}
    else:
        groups = group_runs(find_runs(folders).runs)
        plots = comparison_plots(groups)
        figures = {name: draw_plots([plot]) for name, plot in plots.items()}
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        write(figure, path)
    return paths

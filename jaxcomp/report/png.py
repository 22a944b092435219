"""Draw plots with Matplotlib, into picture files: the same data as on the pages."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from jaxcomp.report import style
from jaxcomp.report.bars import Bars
from jaxcomp.report.labels import cut
from jaxcomp.report.plot import Axis, Panel, Plot, drawable
from jaxcomp.report.scales import Scale, scales_of, thinned, ticks
from jaxcomp.report.units import UNITS

__all__ = ["COLOURS", "draw_bars", "draw_plots", "write"]

# The colours of the slots, as those of the pages.
COLOURS = (
    *(style.BLUE, style.ORANGE, style.GREEN, style.PINK),
    *(style.YELLOW, style.SKY, style.INK, style.GREY),
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
    with style.look():
        figure = Figure(figsize=(width, height))
        for row, plot in enumerate(plots):
            top = height - row * (_HEAD + _ROW + _FOOT) - _HEAD
            bold = {"size": style.FONT_SIZE + 2, "weight": "bold", "va": "top"}
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
    with style.look():
        height = 1.0 + 0.3 * len(bars.rows)
        figure = Figure(figsize=(7.0, height))
        axes = figure.add_axes((0.36, 0.3 / height, 0.48, 1 - 0.8 / height))
        places = np.arange(len(bars.rows))
        axes.barh(places, [bar.value for bar in bars.rows], color=style.BLUE)
        axes.set_yticks(places, [cut(bar.label, 34) for bar in bars.rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * bars.most)
        axes.xaxis.set_visible(False)
        axes.grid(visible=False)
        for place, bar in zip(places, bars.rows, strict=True):
            value = bar.value if np.isfinite(bar.value) else 0.0
            axes.text(value, float(place), f" {bar.text}", va="center_baseline")
        if np.isfinite(bars.at):
            axes.axvline(bars.at, color=style.GREY, linestyle=_DASHES[1], lw=1)
        axes.set_title(bars.title)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Draw a figure into a file: SVG, PNG, or what else the file's name says."""
    with style.look():
        figure.savefig(path, dpi=200, metadata={"Date": None})


def _draw(axes: Axes, panel: Panel, *, is_last: bool) -> None:
    x, y = scales_of(panel)
    for axis, scale, name, most in ((panel.x, x, "x", 6), (panel.y, y, "y", 7)):
        _set_axis(axes, axis, scale, name, most)
    axes.set_title(panel.y.title, size=style.FONT_SIZE, weight="normal")
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
        labels.append(style.EndLabel(text, float(one.y[-1]), colour))
    for line in panel.references:
        axes.axhline(line.at, color=style.GREY, linestyle=_DASHES[1], lw=1)
        place, moved = (axes.get_xlim()[1], line.at), (-3, 3)
        axes.annotate(line.text, place, moved, textcoords="offset points", ha="right")
    if len(panel.front):
        steps = np.array(panel.front)
        axes.step(*steps.T, where="post", color=style.GREY, linestyle=_DASHES[1], lw=1)
    if is_last and len(labels) > 1:
        style.label_ends(axes, labels)


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

"""The look of the figures that Matplotlib draws: benchmarks and notebooks use it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

# Okabe and Ito's palette: distinct for all common kinds of colour blindness.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, YELLOW, PINK = "#56B4E9", "#E69F00", "#CC79A7"
INK, GREY, GRID = "#222222", "#666666", "#DDDDDD"

FONT_SIZE = 9.5

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    # The SVG names these families in this order. Verdana is as wide as DejaVu Sans,
    # the others are narrower, so no text outgrows its place where DejaVu is missing.
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": FONT_SIZE,
    "text.color": INK,
    "axes.titlesize": FONT_SIZE + 1.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    # Constant curves otherwise get ticks like 0.001 with "+2.3" above the axis.
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    # Text stays text: it can be selected and searched, and the page stays small.
    "svg.fonttype": "none",
    # Without a salt the ids differ in every process, and so would the page.
    "svg.hashsalt": "jaxcomp",
}


class EndLabel(NamedTuple):
    """A label right of the plot, at the height where its curve ends."""

    text: str  # may have several lines
    y: float
    colour: str
    marker: str = "s"


def look() -> Any:
    """A context, or decorator, in which figures have the common look.

    A figure needs it while it is made and while it is saved: Matplotlib creates ticks
    only when it draws, and reads its settings then.
    """
    return matplotlib.rc_context(RC)


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels right of the plot, moved apart where they would overlap.

    Args:
      axes: of the plot, with its final limits.
      labels: of its curves.
    """
    axes.get_ylim()  # Matplotlib settles pending limits only when they are asked for.
    box = axes.get_window_extent()
    line = 1.35 * FONT_SIZE * axes.figure.dpi / 72 / box.height
    heights = [_height(axes, label.y) for label in labels]
    sizes = [line * (1 + label.text.count("\n")) for label in labels]
    for label, height in zip(labels, _apart(heights, sizes), strict=True):
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([1.035], [height], label.marker, color=label.colour, ms=6, **place)
        # Of several lines, the baseline is that of the first.
        align = "center" if "\n" in label.text else "center_baseline"
        axes.text(1.06, height, label.text, va=align, **place)


def ticks_with(text: Callable[[float], str]) -> FuncFormatter:
    """The formatter of an axis whose ticks are written by a function of `units`.

    Example:
      >>> from jaxcomp.core.units import bytes_text
      >>> ticks_with(bytes_text)(2e6), ticks_with(bytes_text)(0)
      ('2 MB', '0')
    """
    # Zero has no unit, so it fits in with any that the other ticks have.
    return FuncFormatter(lambda value, _: text(value) if value else "0")


def percent_tick(fraction: float) -> str:
    """A fraction as a percentage with as few digits as it needs.

    Example:
      >>> percent_tick(0.9), percent_tick(0.9502)
      ('90 %', '95.02 %')
    """
    return f"{100 * fraction:.4g} %"


def _height(axes: Axes, y: float) -> float:
    """Where a value lies on the vertical axis, from 0 at the bottom to 1."""
    to_axes = axes.get_yaxis_transform() - axes.transAxes
    return float(np.clip(to_axes.transform((0.0, y))[1], 0.0, 1.0))


def _apart(heights: Sequence[float], sizes: Sequence[float]) -> np.ndarray:
    """Heights of labels of some sizes, moved so that no two overlap."""
    wanted = np.asarray(heights, dtype=float)
    order = np.argsort(wanted, kind="stable")
    placed, tall = wanted[order], np.asarray(sizes, dtype=float)[order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + (tall[i - 1] + tall[i]) / 2)
    # This moved the group upwards as a whole, so it is centred again.
    placed -= np.mean(placed - wanted[order])
    apart = np.empty_like(placed)
    apart[order] = placed
    return apart

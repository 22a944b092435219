"""Suboptimality over bytes and over steps: the plot of convex runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jaxcomp.report import style
from jaxcomp.runs.units import bytes_text, number_text

_WIDTH, _ROW = 9.6, 3.3  # inches
_LEFT, _RIGHT, _BETWEEN = 0.85, 1.85, 0.35
_TOP, _BOTTOM, _GAP = 0.5, 0.6, 0.75


class Curve(NamedTuple):
    """One method; arrays have one entry for each evaluation."""

    label: str
    colour: str
    steps: np.ndarray
    sent: np.ndarray  # bytes
    middle: np.ndarray  # of the suboptimality over seeds
    low: np.ndarray
    high: np.ndarray


class Block(NamedTuple):
    """A row of two panels."""

    title: str
    curves: Sequence[Curve]


@style.look()
def plot_suboptimality(blocks: Sequence[Block]) -> Figure:
    """Draws suboptimality over bytes on the left, over steps on the right.

    Args:
        blocks: One row of panels each. Bands reach from the lowest to the highest.

    Returns:
        The figure.
    """
    height = _TOP + len(blocks) * (_ROW + _GAP) - _GAP + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height))
    shared: Axes | None = None
    rows: list[tuple[Axes, Block]] = []
    width = (_WIDTH - _LEFT - _RIGHT - _BETWEEN) / 2
    for number, block in enumerate(blocks):
        bottom = height - _TOP - _ROW - number * (_ROW + _GAP)
        y, w, h = bottom / height, width / _WIDTH, _ROW / height
        first = figure.add_axes((_LEFT / _WIDTH, y, w, h), sharey=shared)
        shared = shared or first
        left = (_LEFT + width + _BETWEEN) / _WIDTH
        second = figure.add_axes((left, y, w, h), sharey=first)
        _draw(first, block, "sent")
        _draw(second, block, "steps")
        first.set_title(block.title)
        first.set_ylabel("f(x) − f*")
        second.tick_params(labelleft=False)
        last = number + 1 == len(blocks)
        first.set_xlabel("sent by one worker since the start" if last else "")
        second.set_xlabel("steps" if last else "")
        rows.append((second, block))
    # After all is drawn: each row may widen the common vertical axis.
    for axes, block in rows:
        ends = [style.EndLabel(c.label, c.middle[-1], c.colour) for c in block.curves]
        style.label_ends(axes, ends)
    return figure


def _draw(axes: Axes, block: Block, across: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for curve in block.curves:
        x, colour = getattr(curve, across), curve.colour
        # A line through a single evaluation would be invisible.
        marker = "o" if len(x) == 1 else ""
        look: dict[str, Any] = {"marker": marker, "solid_capstyle": "round"}
        axes.plot(x, curve.middle, color=colour, **look)
        band: dict[str, Any] = {"color": colour, "alpha": 0.2, "lw": 0}
        axes.fill_between(x, curve.low, curve.high, **band)
    text = bytes_text if across == "sent" else number_text
    subs = (1.0,) if across == "sent" else (1.0, 3.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())

"""Suboptimality over bytes and over steps: the plot of convex runs."""

from collections.abc import Sequence
from typing import NamedTuple

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
    """Curves that share a row of two panels."""

    title: str
    curves: Sequence[Curve]


@style.look()
def plot_suboptimality(blocks: Sequence[Block]) -> Figure:
    """Draw suboptimality over bytes on the left, over steps on the right.

    Args:
      blocks: one row of panels each. Bands reach from the lowest to the highest.

    Returns:
      The figure.
    """
    height = _TOP + len(blocks) * (_ROW + _GAP) - _GAP + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height))
    panel = (_WIDTH - _LEFT - _RIGHT - _BETWEEN) / 2
    borders = {
        "left": _LEFT / _WIDTH,
        "right": 1 - _RIGHT / _WIDTH,
        "bottom": _BOTTOM / height,
        "top": 1 - _TOP / height,
        "wspace": _BETWEEN / panel,
        "hspace": _GAP / _ROW,
    }
    rows = figure.subplots(
        len(blocks), 2, sharey=True, squeeze=False, gridspec_kw=borders
    )
    for (left, right), block in zip(rows, blocks, strict=True):
        _draw(left, block, "sent")
        _draw(right, block, "steps")
        left.set_title(block.title)
        left.set_ylabel("f(x) − f*")
    rows[-1, 0].set_xlabel("sent by one worker since the start")
    rows[-1, 1].set_xlabel("steps")
    # After all is drawn: each row may widen the common vertical axis.
    for (_, right), block in zip(rows, blocks, strict=True):
        ends = [style.EndLabel(c.label, c.middle[-1], c.colour) for c in block.curves]
        style.label_ends(right, ends)
    return figure


def _draw(axes: Axes, block: Block, across: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for curve in block.curves:
        x, colour = getattr(curve, across), curve.colour
        # A line through a single evaluation would be invisible.
        marker = "o" if len(x) == 1 else ""
        axes.plot(x, curve.middle, color=colour, marker=marker, solid_capstyle="round")
        axes.fill_between(x, curve.low, curve.high, color=colour, alpha=0.2, lw=0)
    text = bytes_text if across == "sent" else number_text
    subs = (1.0,) if across == "sent" else (1.0, 3.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())

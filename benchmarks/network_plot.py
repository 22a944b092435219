"""The plot of benchmarks/network.py: what is measured on slow links, and the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks import style
from benchmarks.network_report import SHARES, Row, predicted, typical
from jaxcomp.core.units import seconds_text
from jaxcomp.wire import cost


class Look(NamedTuple):
    """What tells a method from all others, in colour and without."""

    colour: str
    marker: str


LOOKS = (
    Look(style.INK, "o"),
    Look(style.BLUE, "s"),
    Look(style.ORANGE, "^"),
    Look(style.GREEN, "v"),
    Look(style.SKY, "D"),
    Look(style.YELLOW, "<"),
    Look(style.PINK, ">"),
    Look("#5D3A9B", "p"),
    Look("#7A5230", "h"),
    Look("#999999", "X"),
    Look("#8A8A00", "P"),
    Look("#A50034", "*"),
    Look("#00B8A9", "d"),
    Look("#9E77ED", "8"),
)
_BESIDE = 1.3  # how far the curves go on beside the rates that were measured


def draw(file: Path, rows: Sequence[Row], compute: float) -> None:
    """Draw one setting.

    Args:
      file: of the plot.
      rows: of exchanges in one setting, `network_report.shown`.
      compute: seconds of a step's forward and backward pass.
    """
    with style.look():
        figure = Figure(figsize=(13, 5.6))
        left = figure.add_axes((0.075, 0.1, 0.31, 0.8))
        right = figure.add_axes((0.445, 0.1, 0.31, 0.8))
        step = seconds_text(compute)
        size = f"{rows[0].elements / 1e6:.3g} million float32"
        delay = f", {rows[0].latency:g} ms" if rows[0].latency else ""
        left.set_title(f"Exchange of {size}, {rows[0].workers} workers{delay}")
        left.set_ylabel("points are measured, curves are the model")
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(style.ticks_with(seconds_text))
        right.set_title(f"Share of time in which a step computes ({step})")
        right.set_ylim(0, 1)
        right.set_yticks([0, *SHARES, 1])
        right.yaxis.set_major_formatter(style.ticks_with(style.percent_tick))
        labels = _curves(left, right, rows, compute)
        style.label_ends(right, labels)
        figure.savefig(file, dpi=110)


def _curves(
    left: Axes, right: Axes, rows: Sequence[Row], compute: float
) -> list[style.EndLabel]:
    """Points and a curve for each method in both plots; the labels of the second."""
    measured = [row.measured for row in rows]
    rates = np.geomspace(min(measured) / _BESIDE, max(measured) * _BESIDE, 100)
    labels = []
    for i, model in enumerate(typical(rows)):
        look = LOOKS[i]
        theirs = sorted(
            (row for row in rows if row.method == model.method),
            key=lambda row: row.measured,
        )
        x = np.array([row.measured for row in theirs])
        seconds = np.array([row.ms / 1e3 for row in theirs])
        # Of a peer the program is not read, so that there is no model: points, joined.
        along, curve, line = x, seconds, ":"
        if model.collectives:
            along, line = rates, "-"
            curve = np.array([predicted(model, rate) / 1e3 for rate in rates])
        shares, share_curve = _shares(seconds, compute), _shares(curve, compute)
        for axes, points, drawn in (
            (left, seconds, curve),
            (right, shares, share_curve),
        ):
            axes.plot(x, points, look.marker, color=look.colour)
            axes.plot(along, drawn, line, color=look.colour, linewidth=1.2)
        end = float(share_curve[-1])
        labels.append(style.EndLabel(model.method, end, look.colour, look.marker))
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(rates[0], rates[-1])
        axes.set_xlabel("Mbit/s that a plain socket gets")
        axes.set_xticks(sorted({row.rate for row in rows}))
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(style.ticks_with(lambda mbit: f"{mbit:,.0f}"))
    return labels


def _shares(seconds: np.ndarray, compute: float) -> np.ndarray:
    return np.array([cost.utilisation(compute, each) for each in seconds])

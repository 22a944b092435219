"""The plot of where the time of a step goes."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxcomp.report import style
from jaxcomp.report.run_folder import Run
from jaxcomp.runs.units import number_text, seconds_text

PARTS = (
    ("step", "step_seconds", style.BLUE),
    ("data", "data_seconds", style.SKY),
    ("wait", "wait_seconds", style.YELLOW),
)
MOST_BARS = 60
# The first step compiles and may take a thousand times longer than the others. A bar
# of more than four typical ones is cut, so that the others stay readable.
CUT_FROM, CUT_TO = 4.0, 1.8


class Bars(NamedTuple):
    """Bars of neighbouring logged steps.

    Attributes:
        edges: Steps where the bars begin and end, one more than there are bars.
        heights: Median seconds, one row per part and one column per bar.
    """

    edges: np.ndarray
    heights: np.ndarray


@style.look()
def plot_step_time(run: Run) -> Figure:
    """Draws the parts of the time per step, stacked, over the logged steps.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    figure, axes = style.new_axes("Time per step")
    parts = [part for part in PARTS if np.any(np.isfinite(run.steps[part[1]]))]
    if not parts:
        style.write_note(axes, "step times were not recorded")
        return figure
    seconds = np.array([np.nan_to_num(run.steps[column]) for _, column, _ in parts])
    bars = _bars(run.steps["step"], seconds)
    labels = []
    for i, (name, _, colour) in enumerate(parts):
        top = np.sum(bars.heights[: i + 1], axis=0)
        bottom = top - bars.heights[i]
        axes.stairs(top, bars.edges, baseline=bottom, fill=True, color=colour)
        text = f"{name} {seconds_text(float(np.median(seconds[i])))}"
        middle = float(np.median(bottom + top)) / 2
        labels.append(style.EndLabel(text, middle, colour))
    _step_axis(axes, bars)
    axes.yaxis.set_major_formatter(style.ticks_with(seconds_text))
    _cut_tall_bars(axes, bars)
    style.label_ends(axes, labels)
    return figure


def _bars(steps: np.ndarray, seconds: np.ndarray) -> Bars:
    groups = np.array_split(np.arange(steps.size), min(MOST_BARS, steps.size))
    heights = [np.median(seconds[:, group], axis=1) for group in groups]
    # A row stands for the steps since the row before it.
    ends = steps[[group[-1] for group in groups]]
    return Bars(np.append(min(0.0, ends[0] - 1), ends), np.array(heights).T)


def _step_axis(axes: Axes, bars: Bars) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(bars.edges[0], bars.edges[-1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(style.ticks_with(number_text))


def _cut_tall_bars(axes: Axes, bars: Bars) -> None:
    totals = np.sum(bars.heights, axis=0)
    highest, typical = float(np.max(totals)), float(np.median(totals))
    if not highest > CUT_FROM * typical > 0:
        axes.set_ylim(0, 1.1 * highest or 1.0)
        return
    axes.set_ylim(0, CUT_TO * typical)
    step = bars.edges[1 + np.argmax(totals)]
    note = f"highest bar is cut: {seconds_text(highest)} at step {step:,.0f}"
    axes.text(0.99, 0.95, note, ha="right", color=style.GREY, transform=axes.transAxes)

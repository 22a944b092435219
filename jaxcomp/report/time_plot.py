"""The plot of where the time of a step goes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxcomp.report import style
from jaxcomp.report.run_folder import Run
from jaxcomp.runs.units import number_text, seconds_text

__all__ = ["draw"]

_PARTS = {"step": style.BLUE, "data": style.SKY, "wait": style.YELLOW}
_MOST_BARS = 60
# The first step compiles and may take a thousand times longer than the others. A bar
# more than four times as high as the median is cut, so that the others stay readable.
_CUT_FROM, _CUT_TO = 4.0, 1.8


@style.look()
def draw(run: Run) -> Figure:
    """The parts of the time per step, stacked, over the logged steps."""
    figure, axes = style.new_axes("Time per step")
    columns = {part: run.steps[f"{part}_seconds"] for part in _PARTS}
    parts = [part for part, column in columns.items() if np.isfinite(column).any()]
    if not parts:
        style.write_note(axes, "step times were not recorded")
        return figure
    seconds = np.array([np.nan_to_num(columns[part]) for part in parts])
    edges, heights = _bars(run.steps["step"], seconds)
    tops, labels = np.cumsum(heights, axis=0), []
    for part, own, top, height in zip(parts, seconds, tops, heights, strict=True):
        bottom, colour = top - height, _PARTS[part]
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colour)
        text = f"{part} {seconds_text(float(np.median(own)))}"
        middle = float(np.median(bottom + top)) / 2
        labels.append(style.EndLabel(text, middle, colour))
    axes.set_xlabel("step")
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(style.ticks_with(number_text))
    axes.yaxis.set_major_formatter(style.ticks_with(seconds_text))
    _cut_tall_bars(axes, edges, tops[-1])
    style.label_ends(axes, labels)
    return figure


def _bars(steps: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bars of neighbouring logged steps.

    Args:
      steps: that were logged.
      seconds: of the parts of each, [parts, steps].

    Returns:
      The steps between which the bars stand, [bars + 1], and the median seconds of the
      parts, [parts, bars].
    """
    groups = np.array_split(np.arange(steps.size), min(_MOST_BARS, steps.size))
    heights = [np.median(seconds[:, group], axis=1) for group in groups]
    # A row of steps.csv stands for the steps since the row before it.
    ends = steps[[group[-1] for group in groups]]
    return np.append(min(0.0, ends[0] - 1), ends), np.array(heights).T


def _cut_tall_bars(axes: Axes, edges: np.ndarray, totals: np.ndarray) -> None:
    highest, typical = float(np.max(totals)), float(np.median(totals))
    if not highest > _CUT_FROM * typical > 0:
        axes.set_ylim(0, 1.1 * highest or 1.0)
        return
    axes.set_ylim(0, _CUT_TO * typical)
    step = edges[1 + np.argmax(totals)]
    note = f"highest bar is cut: {seconds_text(highest)} at step {step:,.0f}"
    axes.text(0.99, 0.95, note, ha="right", color=style.GREY, transform=axes.transAxes)

"""The plot that compression is judged by: accuracy over bytes sent."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from jaxcomp.report import style
from jaxcomp.report.run_folder import Run
from jaxcomp.report.summary import bytes_sent
from jaxcomp.report.titles import mixer_title
from jaxcomp.runs.table import Table
from jaxcomp.runs.units import bytes_text, number_text, percent_text, times_text

# Below this ratio of the largest to the smallest position a linear axis shows more.
LOG_RATIO = 8.0


class Quality(NamedTuple):
    """The measure on the vertical axis."""

    name: str
    values: np.ndarray
    of: str = ""


@style.look()
def plot_bytes(run: Run) -> Figure:
    """Draws test accuracy over the bytes that one worker sent.

    Args:
        run: The run. Without test accuracy the plot takes train accuracy, or a loss.

    Returns:
        The figure.
    """
    sent, dense = bytes_sent(run, "wire"), bytes_sent(run, "dense")
    quality = _quality(run.metrics)
    over = "sent per worker"
    if mixer_title(run.config) and quality.name.startswith("test"):
        # The longer title leaves no room for both.
        quality, over = quality._replace(of=" of the mean model"), "sent"
    title = f"{quality.name.capitalize()}{quality.of} over bytes {over}"
    figure, axes = style.new_axes(title, top=0.85)
    if not (sent[-1] > 0 and dense[-1] > 0):
        style.write_note(axes, "bytes per step were not recorded")
        return figure
    if not style.draw_curve(axes, sent, quality.values, style.ORANGE):
        style.write_note(axes, "neither accuracy nor loss was recorded")
        return figure
    _byte_axis(axes, sent[sent > 0], float(dense[-1]))
    _mark_ends(axes, float(sent[-1]), float(dense[-1]))
    _label_quality(axes, sent, quality)
    return figure


def _quality(metrics: Table) -> Quality:
    names = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")
    for name in names:
        if np.any(np.isfinite(metrics[name])):
            return Quality(name.replace("_", " "), metrics[name])
    return Quality("quality", metrics["test_accuracy"])


def _byte_axis(axes: Axes, sent: np.ndarray, dense: float) -> None:
    smallest, largest = float(sent[0]), max(float(sent[-1]), dense)
    if dense / float(sent[-1]) >= LOG_RATIO:
        axes.set_xscale("log")
        pad = (largest / smallest) ** 0.04
        axes.set_xlim(smallest / pad, largest * pad)
        decades = np.log10(largest / smallest)
        subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs if decades < 2.2 else (1.0,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.04 * largest)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(style.ticks_with(bytes_text))
    axes.set_xlabel("sent by one worker since the start")


def _mark_ends(axes: Axes, sent: float, dense: float) -> None:
    ratio = dense / sent
    if abs(ratio - 1) < 0.005:
        _mark(axes, sent, f"sent {bytes_text(sent)}\nas without compression", "right")
        return
    # Near each other, the two labels lean away from each other.
    if abs(_place(axes, dense) - _place(axes, sent)) > 0.42:
        sides = ("center", "center")
    else:
        sides = ("right", "left") if sent < dense else ("left", "right")
    _mark(axes, sent, f"sent\n{bytes_text(sent)}", sides[0])
    text = f"uncompressed\n{bytes_text(dense)} ({times_text(ratio)})"
    _mark(axes, dense, text, sides[1])
    axes.axvline(dense, color=style.GREY, linestyle=(0, (4, 3)), linewidth=1.2)


def _mark(axes: Axes, x: float, text: str, side: str) -> None:
    axes.text(
        x,
        1.03,
        text,
        transform=axes.get_xaxis_transform(),
        ha=side,
        va="bottom",
        linespacing=1.25,
    )
    axes.axvline(x, ymin=0.985, ymax=1.02, color=style.INK, lw=1.2, clip_on=False)


def _label_quality(axes: Axes, sent: np.ndarray, quality: Quality) -> None:
    is_share = quality.name.endswith("accuracy")
    tick = style.percent_tick if is_share else number_text
    axes.yaxis.set_major_formatter(style.ticks_with(tick))
    last = np.flatnonzero(np.isfinite(quality.values))[-1]
    x, y = float(sent[last]), float(quality.values[last])
    text = (percent_text if is_share else number_text)(y)
    if _place(axes, x) < 0.7:
        gap = {"xytext": (8, 0), "textcoords": "offset points"}
        axes.annotate(text, (x, y), va="center_baseline", **gap)
    else:
        style.label_ends(axes, [style.EndLabel(text, y, style.ORANGE)])


def _place(axes: Axes, x: float) -> float:
    to_axes = axes.get_xaxis_transform() - axes.transAxes
    return float(to_axes.transform((x, 0.0))[0])

"""The plot of accuracy over the bytes that were sent."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from jaxcomp.report import style
from jaxcomp.report.cards import bytes_sent
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title
from jaxcomp.runs.units import bytes_text, number_text, percent_text, times_text

__all__ = ["draw"]

# What may stand on the vertical axis: the first that was recorded.
_MEASURES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")
# Below this ratio of the largest to the smallest position a linear axis shows more.
_LOG_RATIO = 8.0


@style.look()
def draw(run: Run) -> Figure:
    """Test accuracy over the bytes that one worker has sent.

    Without test accuracy, train accuracy or a loss takes its place.
    """
    sent, dense = bytes_sent(run, "wire"), bytes_sent(run, "dense")
    metrics = run.metrics
    recorded = [name for name in _MEASURES if np.isfinite(metrics[name]).any()]
    measure = recorded[0] if recorded else "quality"
    title = f"{measure.replace('_', ' ').capitalize()} over bytes sent per worker"
    if mixer_title(run.config) and measure.startswith("test"):
        # The longer title leaves no room for "per worker".
        title = title.replace(" over bytes sent per worker", " of the mean model")
        title += " over bytes sent"
    figure, axes = style.new_axes(title, top=0.85)
    if not (sent[-1] > 0 and dense[-1] > 0):
        style.write_note(axes, "bytes per step were not recorded")
    elif not recorded:
        style.write_note(axes, "neither accuracy nor loss was recorded")
    else:
        style.draw_curve(axes, sent, metrics[measure], style.ORANGE)
        _byte_axis(axes, sent[sent > 0], float(dense[-1]))
        _mark_ends(axes, float(sent[-1]), float(dense[-1]))
        _label_measure(axes, sent, metrics[measure], measure)
    return figure


def _byte_axis(axes: Axes, sent: np.ndarray, dense: float) -> None:
    smallest, largest = float(sent[0]), max(float(sent[-1]), dense)
    if dense / float(sent[-1]) >= _LOG_RATIO:
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
    # Labels that are close to each other are aligned away from each other.
    if abs(_place(axes, dense) - _place(axes, sent)) > 0.42:
        sides = ("center", "center")
    else:
        sides = ("right", "left") if sent < dense else ("left", "right")
    _mark(axes, sent, f"sent\n{bytes_text(sent)}", sides[0])
    text = f"uncompressed\n{bytes_text(dense)} ({times_text(ratio)})"
    _mark(axes, dense, text, sides[1])
    axes.axvline(dense, color=style.GREY, linestyle=(0, (4, 3)), linewidth=1.2)


def _mark(axes: Axes, x: float, text: str, side: str) -> None:
    above = axes.get_xaxis_transform()
    axes.text(x, 1.03, text, transform=above, ha=side, va="bottom", linespacing=1.25)
    axes.axvline(x, ymin=0.985, ymax=1.02, color=style.INK, lw=1.2, clip_on=False)


def _label_measure(
    axes: Axes, sent: np.ndarray, values: np.ndarray, measure: str
) -> None:
    is_share = measure.endswith("accuracy")
    tick = style.percent_tick if is_share else number_text
    axes.yaxis.set_major_formatter(style.ticks_with(tick))
    last = np.flatnonzero(np.isfinite(values))[-1]
    x, y = float(sent[last]), float(values[last])
    text = (percent_text if is_share else number_text)(y)
    if _place(axes, x) < 0.7:
        gap = {"xytext": (8, 0), "textcoords": "offset points"}
        axes.annotate(text, (x, y), va="center_baseline", **gap)
    else:
        style.label_ends(axes, [style.EndLabel(text, y, style.ORANGE)])


def _place(axes: Axes, x: float) -> float:
    """Where a value lies on the horizontal axis, from 0 at the left to 1."""
    to_axes = axes.get_xaxis_transform() - axes.transAxes
    return float(to_axes.transform((x, 0.0))[0])

"""The plots of a report: each function draws one for one run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import style
from jaxcomp.report.bytes_plot import plot_bytes
from jaxcomp.report.run_folder import Run
from jaxcomp.report.time_plot import plot_step_time
from jaxcomp.report.units import number_text, percent_text


class Plot(NamedTuple):
    """One plot of a report.

    Attributes:
        name: Short name, used for files and ids.
        caption: What the plot shows, for below it.
        draw: Draws it.
    """

    name: str
    caption: str
    draw: Callable[[Run], Figure]


@style.look()
def plot_loss(run: Run) -> Figure:
    """Draws train and test loss over epochs.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    return _train_and_test(run, "loss", "Loss", number_text)


@style.look()
def plot_accuracy(run: Run) -> Figure:
    """Draws train and test accuracy over epochs.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    return _train_and_test(run, "accuracy", "Accuracy", percent_text)


@style.look()
def plot_residual(run: Run) -> Figure:
    """Draws the norm of the residual over epochs.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    return _one_curve(run, "residual_norm", "Residual norm", style.GREEN)


@style.look()
def plot_gradient_error(run: Run) -> Figure:
    """Draws the error of the exchanged gradient over epochs.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    return _one_curve(run, "gradient_error", "Gradient error", style.PINK)


PLOTS = (
    Plot("accuracy", "Share of images classified correctly.", plot_accuracy),
    Plot(
        "bytes",
        "What a byte on the network buys: the curve runs over the bytes that one "
        "worker sent so far. The dashed line is where the same steps would have "
        "ended without compression.",
        plot_bytes,
    ),
    Plot("loss", "Mean loss of each epoch.", plot_loss),
    Plot(
        "time",
        "Where the time of a step goes, as medians over neighbouring logged steps; "
        "right the medians of the run.",
        plot_step_time,
    ),
    Plot(
        "residual",
        "Size of what the memory holds back for later steps. It levels off when the "
        "memory returns as much as it takes.",
        plot_residual,
    ),
    Plot(
        "gradient_error",
        "Distance of the exchanged gradient from the uncompressed one, as the trainer "
        "records it.",
        plot_gradient_error,
    ),
)


def _train_and_test(
    run: Run, quantity: str, title: str, text: Callable[[float], str]
) -> Figure:
    figure, axes = style.new_axes(title)
    labels = []
    for part, colour in (("train", style.BLUE), ("test", style.ORANGE)):
        y = run.metrics[f"{part}_{quantity}"]
        if style.draw_curve(axes, run.metrics["epoch"], y, colour):
            end = float(y[np.isfinite(y)][-1])
            labels.append(style.EndLabel(f"{part} {text(end)}", end, colour))
    if not labels:
        style.write_note(axes, f"{quantity} was not recorded")
        return figure
    style.epoch_axis(axes, run.metrics["epoch"])
    tick = style.percent_tick if quantity == "accuracy" else number_text
    axes.yaxis.set_major_formatter(style.ticks_with(tick))
    style.label_ends(axes, labels)
    return figure


def _one_curve(run: Run, column: str, title: str, colour: str) -> Figure:
    figure, axes = style.new_axes(title)
    y = run.metrics[column]
    if not style.draw_curve(axes, run.metrics["epoch"], y, colour):
        style.write_note(axes, f"{title.lower()} was not recorded")
        return figure
    style.epoch_axis(axes, run.metrics["epoch"])
    axes.yaxis.set_major_formatter(style.ticks_with(number_text))
    end = float(y[np.isfinite(y)][-1])
    style.label_ends(axes, [style.EndLabel(number_text(end), end, colour)])
    return figure

"""The plots of a report: each function draws one for one run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import style
from jaxcomp.report.bytes_plot import plot_bytes
from jaxcomp.report.run_folder import Run
from jaxcomp.report.time_plot import plot_step_time
from jaxcomp.report.titles import mixer_title
from jaxcomp.runs.units import number_text, percent_text

# Own and worst: of the workers' models, of which there is no loss.
CURVES = (
    ("train", style.BLUE),
    ("test", style.ORANGE),
    ("own", style.GREEN),
    ("worst", style.PINK),
)
LONGEST_MIXER = 34  # characters that fit behind the title of a plot


class Plot(NamedTuple):
    """One plot of a report.

    Attributes:
        name: Short name, used for files and ids.
        caption: What the plot shows, for below it.
        draw: Draws it.
        needs: Column of `metrics.csv` without which the plot is left out.
        mixed: The caption where workers have models of their own; "" for the same.
    """

    name: str
    caption: str
    draw: Callable[[Run], Figure]
    needs: str = ""
    mixed: str = ""


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
    """Draws train and test accuracy over epochs, also that of the workers' own models.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    own = bool(mixer_title(run.config))
    title = "Accuracy (test: of the mean model)" if own else "Accuracy"
    return _train_and_test(run, "accuracy", title, percent_text)


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


@style.look()
def plot_consensus(run: Run) -> Figure:
    """Draws how far the workers' models are from their mean, over epochs.

    Args:
        run: The run.

    Returns:
        The figure.
    """
    mixer = mixer_title(run.config)
    of = f", {mixer}" if 0 < len(mixer) <= LONGEST_MIXER else ""
    return _one_curve(run, "consensus_distance", f"Consensus distance{of}", style.BLUE)


BYTES = (
    "What a byte on the network buys: the curve runs over the bytes that one worker "
    "sent so far. The dashed line is where the same steps would have ended without "
    "compression."
)
OF_MEAN = "is that of the mean of the workers' models"

PLOTS = (
    Plot(
        "accuracy",
        "Share of images classified correctly.",
        plot_accuracy,
        mixed=f"Share of images classified correctly. Test accuracy {OF_MEAN}; where "
        "every worker's own model was tested as well, own is their mean and worst the "
        "lowest.",
    ),
    Plot("bytes", BYTES, plot_bytes, mixed=f"{BYTES} Test accuracy {OF_MEAN}."),
    Plot(
        "loss",
        "Mean loss of each epoch.",
        plot_loss,
        mixed=f"Mean loss of each epoch. Test loss {OF_MEAN}.",
    ),
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
        mixed="Size of what was to be sent and was held back for later steps.",
    ),
    Plot(
        "gradient_error",
        "Distance of the exchanged gradient from the uncompressed one, as the trainer "
        "records it.",
        plot_gradient_error,
        mixed="Squared distance of what was sent from what was to be sent, as a share "
        "of the latter.",
    ),
    Plot(
        "consensus",
        "How far the workers' models are from their mean: the root of the mean "
        "squared distance at the end of each epoch.",
        plot_consensus,
        needs="consensus_distance",
    ),
)


def plots_of(run: Run) -> list[Plot]:
    """Chooses the plots of a run.

    Args:
        run: The run.

    Returns:
        The plots that it has the columns for, with their captions for this run.
    """
    own = bool(mixer_title(run.config))
    return [
        plot._replace(caption=plot.mixed if own and plot.mixed else plot.caption)
        for plot in PLOTS
        if not plot.needs or np.any(np.isfinite(run.metrics[plot.needs]))
    ]


def _train_and_test(
    run: Run, quantity: str, title: str, text: Callable[[float], str]
) -> Figure:
    figure, axes = style.new_axes(title)
    labels = []
    for part, colour in CURVES:
        y = run.metrics.get(f"{part}_{quantity}", np.empty(0))
        # A curve without any point would still take a colour.
        if not np.any(np.isfinite(y)):
            continue
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

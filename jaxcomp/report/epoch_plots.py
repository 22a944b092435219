"""Plots of figures over epochs: one curve each, or several that are compared."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import style
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title
from jaxcomp.runs.units import number_text, percent_text

__all__ = ["accuracy", "consensus", "gradient_error", "loss", "over_epochs", "residual"]

_LONGEST_MIXER = 34  # characters that fit behind the title of a plot
# Own and worst are the accuracies of the workers' own models, which have no loss.
_PARTS = {
    "train": style.BLUE,
    "test": style.ORANGE,
    "own": style.GREEN,
    "worst": style.PINK,
}


def loss(run: Run) -> Figure:
    """Train and test loss."""
    curves = [(part, f"{part}_loss", _PARTS[part]) for part in ("train", "test")]
    return over_epochs(run, "Loss", curves)


def accuracy(run: Run) -> Figure:
    """Train and test accuracy, and those of the workers' own models."""
    own = " (test: of the mean model)" if mixer_title(run.config) else ""
    curves = [(part, f"{part}_accuracy", colour) for part, colour in _PARTS.items()]
    return over_epochs(
        run, f"Accuracy{own}", curves, text=percent_text, tick=style.percent_tick
    )


def residual(run: Run) -> Figure:
    """The norm of the residual that the memory keeps."""
    return over_epochs(run, "Residual norm", [("", "residual_norm", style.GREEN)])


def gradient_error(run: Run) -> Figure:
    """The error of the exchanged gradient."""
    return over_epochs(run, "Gradient error", [("", "gradient_error", style.PINK)])


def consensus(run: Run) -> Figure:
    """How far the workers' models are from their mean."""
    mixer = mixer_title(run.config)
    of = f", {mixer}" if 0 < len(mixer) <= _LONGEST_MIXER else ""
    curve = ("", "consensus_distance", style.BLUE)
    return over_epochs(run, f"Consensus distance{of}", [curve])


@style.look()
def over_epochs(
    run: Run,
    title: str,
    curves: Sequence[tuple[str, str, str]],
    text: Callable[[float], str] = number_text,
    tick: Callable[[float], str] = number_text,
) -> Figure:
    """Draw columns of metrics.csv over epochs; each curve is labelled at its end.

    Args:
      run: from `read_run`.
      title: of the plot. What stands before a comma or bracket names the figure.
      curves: label (may be empty), column and colour of each. Those without any number
        are left out.
      text: writes the last value of a curve.
      tick: writes the ticks of the vertical axis.

    Returns:
      The figure.
    """
    figure, axes = style.new_axes(title)
    epochs, labels = run.metrics["epoch"], []
    for label, column, colour in curves:
        y = run.metrics[column]
        seen = y[np.isfinite(y)]
        if seen.size:
            style.draw_curve(axes, epochs, y, colour)
            end = float(seen[-1])
            shown = f"{label} {text(end)}".strip()
            labels.append(style.EndLabel(shown, end, colour))
    if not labels:
        what = title.partition(" (")[0].partition(",")[0].lower()
        style.write_note(axes, f"{what} was not recorded")
        return figure
    style.epoch_axis(axes, epochs)
    axes.yaxis.set_major_formatter(style.ticks_with(tick))
    style.label_ends(axes, labels)
    return figure

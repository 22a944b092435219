"""The plots of a report, by name."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jaxcomp.report import bytes_plot, epoch_plots, time_plot
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title

__all__ = ["REGISTRY", "Plot", "plots_of"]


class Plot(NamedTuple):
    """One plot of a report."""

    draw: Callable[[Run], Figure]
    caption: str  # what the plot shows, for below it
    mixed: str = ""  # the caption where workers have models of their own; "": the same
    needs: str = ""  # column of metrics.csv without which the plot is left out


_BYTES = (
    "Progress over the bytes that one worker has sent. The dashed line shows how many "
    "bytes the same steps would have sent without compression."
)
_OF_MEAN = "is that of the mean of the workers' models"

# In the order of the page. The names are those of PNG files, and ids in the page.
REGISTRY: dict[str, Plot] = {
    "accuracy": Plot(
        epoch_plots.accuracy,
        "Share of examples that were classified correctly.",
        f"Share of examples that were classified correctly. Test accuracy {_OF_MEAN}; "
        "where every worker's own model was tested as well, own is their mean and "
        "worst the lowest.",
    ),
    "bytes": Plot(bytes_plot.draw, _BYTES, f"{_BYTES} Test accuracy {_OF_MEAN}."),
    "loss": Plot(
        epoch_plots.loss,
        "Mean loss of each epoch.",
        f"Mean loss of each epoch. Test loss {_OF_MEAN}.",
    ),
    "time": Plot(
        time_plot.draw,
        "How the time of a step is divided: medians over neighbouring logged steps, "
        "and on the right medians over the whole run.",
    ),
    "residual": Plot(
        epoch_plots.residual,
        "Size of what the memory holds back for later steps. It levels off when the "
        "memory returns as much as it takes.",
        "Size of what was not sent and is held back for later steps.",
    ),
    "gradient_error": Plot(
        epoch_plots.gradient_error,
        "Squared distance of the gradient that was sent from the one that was given, "
        "relative to the latter.",
        "Squared distance of what was sent from what it approximates, relative to the "
        "latter.",
    ),
    "consensus": Plot(
        epoch_plots.consensus,
        "How far the workers' models are from their mean: the root of the mean squared "
        "distance at the end of each epoch.",
        needs="consensus_distance",
    ),
}


def plots_of(run: Run) -> dict[str, Plot]:
    """The plots for which a run has the columns, with their captions for this run."""
    mixed = bool(mixer_title(run.config))
    return {
        name: plot._replace(caption=(mixed and plot.mixed) or plot.caption)
        for name, plot in REGISTRY.items()
        if not plot.needs or np.any(np.isfinite(run.metrics[plot.needs]))
    }

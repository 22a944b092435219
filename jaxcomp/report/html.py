"""Write the report of a run as one HTML page that needs no other file."""

import os
from pathlib import Path

import numpy as np

from jaxcomp.files import write_atomically
from jaxcomp.report.cards import headline
from jaxcomp.report.convex_page import render_convex_page
from jaxcomp.report.page import Drawing, provenance, render, started
from jaxcomp.report.run_folder import Run, is_convex, read_convex, read_run
from jaxcomp.report.titles import mixer_title, run_title
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.metrics import METRICS
from jaxcomp.runs.units import number_text

__all__ = ["all_convex", "render_page", "write_report"]

# Warnings at the top of the page, by the column of metrics.csv that is above 0.
_ALARMS = {
    "residual_grows": (
        "the residual, which the memory keeps for later steps, grew without bound: the "
        "compressor loses more than the memory can return, so that much of the "
        "gradient never reaches the model. See error_feedback in docs/methods.md."
    ),
    "traced": (
        "bytes were counted in the traced step, because the compiled program could not "
        "be read. The run's console shows which line of it."
    ),
    "skipped_steps": (
        "steps were left out, because a loss or a gradient in them was not finite. "
        "The table of epochs says how many."
    ),
}
_OF_MEAN_MODEL = ("test_loss", "test_accuracy")  # where each worker has its own model


def write_report(*folders: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder.

    Args:
      *folders: the folder of one training run, or of one or more convex runs. The first
        one gets the page.

    Returns:
      The written file. An older report is replaced in one step: whoever opens it
      meanwhile sees the old page or the new one.

    Raises:
      RunError: a folder holds no run with a finished epoch or evaluation, or the runs
        do not fit on one page.
    """
    if all_convex(*folders):
        page = render_convex_page([read_convex(folder) for folder in folders])
    else:
        page = render_page(read_run(folders[0]))
    path = Path(folders[0]) / "report.html"
    write_atomically(path, page)
    return path


def all_convex(*folders: str | os.PathLike[str]) -> bool:
    """Whether the folders hold convex runs; if not, they hold one training run.

    Args:
      *folders: one run folder or several.

    Raises:
      RunError: the runs do not fit on one page.
    """
    kinds = [is_convex(folder) for folder in folders]
    if any(kinds) and not all(kinds):
        convex, other = folders[kinds.index(True)], folders[kinds.index(False)]
        raise RunError(
            f"{convex} holds a convex run and {other} does not: a report shows either "
            f"convex runs or a training run"
        )
    if not any(kinds) and len(folders) != 1:
        raise RunError(
            f"got {len(folders)} training runs, expected one: only convex runs share "
            f"a report"
        )
    return any(kinds)


def render_page(run: Run) -> str:
    """The page of a training run; the same run gives the same text."""
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.plots import plots_of
    from jaxcomp.report.svg import inline_svg

    mixer = mixer_title(run.config)
    own = f"; each worker has a model of its own, mixed by {mixer}" if mixer else ""
    return render(
        "run.html",
        title=run_title(run.config, run.environment) or run.name,
        subtitle=started(run) + own,
        alarms=_alarms(run),
        cards=headline(run),
        plots=[
            Drawing(inline_svg(plot.draw(run), name), plot.caption)
            for name, plot in plots_of(run).items()
        ],
        epochs=_epochs(run, mixed=bool(mixer)),
        provenance=provenance(run),
    )


def _alarms(run: Run) -> list[str]:
    alarms = []
    for column, text in _ALARMS.items():
        epochs = run.metrics["epoch"][run.metrics[column] > 0]
        if epochs.size:
            alarms.append(f"From epoch {number_text(epochs[0])} on, {text}")
    return alarms


def _epochs(run: Run, mixed: bool) -> list[dict[str, str]]:
    """The table of epochs, without the columns that the run did not record."""
    columns = {}
    for metric in METRICS:
        if metric.heading and not np.all(np.isnan(run.metrics[metric.name])):
            of_mean = mixed and metric.name in _OF_MEAN_MODEL
            columns[metric.heading + (" of the mean model" if of_mean else "")] = metric
    return [
        {head: m.text(run.metrics[m.name][i]) for head, m in columns.items()}
        for i in range(len(run.metrics["epoch"]))
    ]

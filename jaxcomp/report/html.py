"""Write the report of a run as one HTML page that needs nothing else."""

import math
import os
from pathlib import Path

from jaxcomp.files import write_atomically
from jaxcomp.report.convex_folder import read_convex
from jaxcomp.report.convex_page import render_convex_page
from jaxcomp.report.page import Card, Numbers, Plot, provenance, render, started
from jaxcomp.report.run_folder import Run, is_convex, read_run
from jaxcomp.report.summary import Summary, summarize
from jaxcomp.report.tables import metrics_table
from jaxcomp.report.titles import method_title, mixer_title
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)

# What nobody may overlook, by the column of metrics.csv that tells it.
_ALARMS = {
    "residual_grows": (
        "what is kept and not sent grew without end: the compressor loses more than "
        "there is, and the model learns from what is left. See error_feedback in "
        "docs/methods.md."
    ),
    "traced": (
        "bytes are those of the traced step: the compiled program could not be read. "
        "The run's console says which line of it."
    ),
    "skipped_steps": (
        "steps were left out, because a loss or a gradient in them was not finite. "
        "The table of epochs says how many."
    ),
}


def write_report(*folders: str | os.PathLike[str]) -> Path:
    """Writes `report.html` into a run folder.

    Args:
        folders: The run folder. Of the convex testbed there may be several; the first
            gets the page.

    Returns:
        The written file. An older report is replaced in one step, so whoever reads
        it meanwhile sees the old page or the new one.

    Raises:
        RunError: If a folder holds no run with a finished epoch or evaluation, or
            if the runs do not fit on one page.
    """
    if all_convex(*folders):
        page = render_convex_page([read_convex(folder) for folder in folders])
    else:
        page = render_page(read_run(folders[0]))
    path = Path(folders[0]) / "report.html"
    write_atomically(path, page)
    return path


def all_convex(*folders: str | os.PathLike[str]) -> bool:
    """Says which of the two kinds of page these folders make.

    Args:
        folders: One run folder or several.

    Returns:
        Whether they are of the convex testbed; else it is one training run.

    Raises:
        RunError: If they do not fit on one page.
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
    """Writes the page of a run.

    Args:
        run: The run.

    Returns:
        The page as text; the same run gives the same text.
    """
    title = method_title(run.config, run.environment.get("method")) or run.name
    mixer = mixer_title(run.config)
    return render(
        "run.html",
        title=title,
        subtitle=_subtitle(run, mixer),
        alarms=_alarms(run),
        cards=_cards(summarize(run), mixer),
        plots=_plots(run),
        epochs=Numbers(*metrics_table(run.metrics, mixed=bool(mixer))),
        provenance=provenance(run.config, run.environment),
    )


def _alarms(run: Run) -> list[str]:
    alarms = []
    for column, text in _ALARMS.items():
        epochs = run.metrics["epoch"][run.metrics[column] > 0]
        if epochs.size:
            alarms.append(f"From epoch {number_text(epochs[0])} on, {text}")
    return alarms


def _subtitle(run: Run, mixer: str) -> str:
    own = f"; each worker has a model of its own, mixed by {mixer}" if mixer else ""
    return f"run {run.name}{started(run.environment)}{own}"


def _cards(summary: Summary, mixer: str) -> list[Card]:
    whose = " of the mean model" if mixer else ""
    cards = [
        Card(
            f"final test accuracy{whose}",
            percent_text(summary.final_accuracy),
            _when(summary.final_epoch),
        ),
        Card(
            f"best test accuracy{whose}",
            percent_text(summary.best_accuracy),
            _when(summary.best_epoch),
        ),
        Card(
            "sent per worker and step",
            bytes_text(summary.wire_bytes_per_step),
            f"uncompressed {bytes_text(summary.dense_bytes_per_step)}",
        ),
        Card("compression", times_text(summary.ratio), "uncompressed / sent"),
        Card(
            "sent per worker in total",
            bytes_text(summary.wire_bytes),
            f"uncompressed {bytes_text(summary.dense_bytes)}",
        ),
        Card(
            "training time",
            seconds_text(summary.seconds),
            f"without compiling; epochs: {summary.epochs:,}, "
            f"steps: {number_text(summary.steps)}",
        ),
        Card(
            "images per second",
            number_text(summary.images_per_second),
            "all workers together",
        ),
    ]
    return cards[:2] + _own_cards(summary) + cards[2:]


def _own_cards(summary: Summary) -> list[Card]:
    own, worst = summary.own_accuracy, summary.worst_accuracy
    when, distance = _when(summary.own_epoch), summary.consensus_distance
    cards = [
        Card("own test accuracy", percent_text(own), f"mean of the workers, {when}"),
        Card("worst own accuracy", percent_text(worst), f"of one worker, {when}"),
        Card("consensus distance", number_text(distance), "at the end"),
    ]
    values = (own, worst, distance)
    return [c for c, value in zip(cards, values, strict=True) if math.isfinite(value)]


def _when(epoch: float) -> str:
    return "not evaluated" if math.isnan(epoch) else f"epoch {number_text(epoch)}"


def _plots(run: Run) -> list[Plot]:
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.plots import plots_of
    from jaxcomp.report.svg import inline_svg

    return [
        Plot(inline_svg(plot.draw(run), plot.name), plot.caption)
        for plot in plots_of(run)
    ]

"""Write the report of a run as one HTML page that needs nothing else."""

import math
import os
import shlex
from html import escape
from pathlib import Path
from typing import Any

from jaxcomp.report.page_style import CSS
from jaxcomp.report.run_folder import Run, read_run
from jaxcomp.report.summary import Summary, method_title, summarize
from jaxcomp.report.tables import metrics_table, pairs_table
from jaxcomp.report.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html` into a run folder.

    Args:
        folder: The run folder.

    Returns:
        The written file. An older report is replaced in one step, so whoever reads
        it meanwhile sees the old page or the new one.

    Raises:
        ReportError: If the folder holds no run with a finished epoch.
    """
    page = render_page(read_run(folder))
    path = Path(folder) / "report.html"
    draft = path.with_name(f".report.html.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def render_page(run: Run) -> str:
    """Writes the page of a run.

    Args:
        run: The run.

    Returns:
        The page as text; the same run gives the same text.
    """
    title = method_title(run.config, run.environment.get("method")) or run.name
    environment = dict(run.environment)
    command = environment.pop("command", None)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="soft">{escape(_subtitle(run))}</p>
</header>
<main>
{_headline(summarize(run))}
<h2>Plots</h2>
{_plots(run)}
<h2>Epochs</h2>
{metrics_table(run.metrics)}
<div class="tables">
<section>
<h2>Config</h2>
{pairs_table(run.config, "config.json is missing or cut off")}
</section>
<section>
<h2>Environment</h2>
{pairs_table(environment, "environment.json is missing or cut off")}
</section>
</div>
<h2>Command</h2>
{_command(command)}
</main>
</body>
</html>
"""


def _subtitle(run: Run) -> str:
    started = run.environment.get("started")
    return f"run {run.name}" + (f", started {started}" if started else "")


def _headline(summary: Summary) -> str:
    numbers = [
        (
            "final test accuracy",
            percent_text(summary.final_accuracy),
            _when(summary.final_epoch),
        ),
        (
            "best test accuracy",
            percent_text(summary.best_accuracy),
            _when(summary.best_epoch),
        ),
        (
            "sent per worker and step",
            bytes_text(summary.wire_bytes_per_step),
            f"uncompressed {bytes_text(summary.dense_bytes_per_step)}",
        ),
        ("compression", times_text(summary.ratio), "uncompressed / sent"),
        (
            "sent per worker in total",
            bytes_text(summary.wire_bytes),
            f"uncompressed {bytes_text(summary.dense_bytes)}",
        ),
        (
            "training time",
            seconds_text(summary.seconds),
            f"epochs: {summary.epochs:,}, steps: {number_text(summary.steps)}",
        ),
        (
            "images per second",
            number_text(summary.images_per_second),
            "all workers together",
        ),
    ]
    cards = "\n".join(
        f'<div><dt>{name}</dt><dd class="value">{value}</dd>'
        f'<dd class="note">{note}</dd></div>'
        for name, value, note in numbers
    )
    return f'<dl class="headline">\n{cards}\n</dl>'


def _when(epoch: float) -> str:
    return "not evaluated" if math.isnan(epoch) else f"epoch {number_text(epoch)}"


def _plots(run: Run) -> str:
    # Matplotlib takes most of a second to import; only whoever draws pays for it.
    from jaxcomp.report.plots import PLOTS
    from jaxcomp.report.svg import inline_svg

    figures = "\n".join(
        f"<figure>\n{inline_svg(plot.draw(run), plot.name)}\n"
        f"<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
        for plot in PLOTS
    )
    return f'<div class="plots">\n{figures}\n</div>'


def _command(command: Any) -> str:
    if not isinstance(command, list) or not command:
        return '<p class="soft">not recorded in environment.json</p>'
    return f"<pre><code>{escape(shlex.join(map(str, command)))}</code></pre>"

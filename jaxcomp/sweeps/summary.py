"""What has come out of a sweep: summary.csv, and lines for the console."""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcomp.files import write_atomically
from jaxcomp.runs.units import MISSING, number_text, percent_text, seconds_text
from jaxcomp.sweeps.figures import Best
from jaxcomp.sweeps.plan import Run, differing
from jaxcomp.sweeps.runner import Job, Look

__all__ = ["SUMMARY", "best_run", "line_of", "time_left", "write_summary"]

SUMMARY = "summary.csv"


def write_summary(job: Job, look: Look) -> Path:
    """Write a row for each run: what differs, what came out, and the whole config.

    Args:
      job: the sweep.
      look: where it stands.

    Returns:
      The file.
    """
    differ = differing(look.runs)
    same = [k for run in look.runs for k in run.config if k not in differ]
    labels = dict.fromkeys(name for run in look.runs for name in run.setting.labels)
    # A label may have the name of a key, such as memory.
    labels = {
        name: name if name not in look.runs[0].config else f"{name} (label)"
        for name in labels
    }
    figures = dict.fromkeys(n for found in look.figures.values() for n in found)
    columns = [
        *("run", "state", *labels.values(), *differ, job.best.key),
        *(name for name in figures if name != job.best.key),
        *("run_seconds", "failures", "error", *dict.fromkeys(same)),
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for run in look.runs:
        entry = look.entry(run)
        row = {"run": run.name, "state": entry.state, "error": entry.error}
        row |= {"run_seconds": f"{entry.seconds:.1f}", "failures": entry.failures}
        row |= {labels[name]: label for name, label in run.setting.labels.items()}
        row |= {key: _cell(value) for key, value in run.config.items()}
        row |= {n: _number(v) for n, v in look.figures.get(run.name, {}).items()}
        writer.writerow(row)
    path = job.folder / SUMMARY
    write_atomically(path, text.getvalue())
    return path


def best_run(job: Job, look: Look) -> Run | None:
    """The run whose figure is the best; none where no run knows it."""
    scored = [
        (job.best.score(look.figures[run.name]), run)
        for run in look.runs
        if run.name in look.figures
    ]
    known = [pair for pair in scored if pair[0] > -math.inf]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def line_of(job: Job, look: Look, run: Run) -> str:
    """What is said of a run when it has ended."""
    entry, done = look.entry(run), sum(look.entry(r).ended for r in look.runs)
    place = f"{done} of {len(look.runs)}"
    if entry.state == "finished":
        figure = figure_text(job.best, look.figures.get(run.name, {}))
        return f"{place}: {run.setting.title}: {figure}, {seconds_text(entry.seconds)}"
    if entry.state == "failed":
        return f"{place}: {run.setting.title}: failed twice: {entry.error}"
    if entry.error:
        return f"{run.setting.title}: failed, and is started once more: {entry.error}"
    return f"{run.setting.title}: interrupted, and has saved"


def time_left(look: Look, jobs: int) -> str:
    """How long the other runs will take; nothing before one has finished.

    They are taken to need as long as the mean of those that have.
    """
    ended = [entry for run in look.runs if (entry := look.entry(run)).ended]
    took = [entry.seconds for entry in ended if entry.state == "finished"]
    if not took or not look.left:
        return ""
    mean = sum(took) / len(took)
    spent = sum(min(seconds, mean) for seconds in look.running.values())
    left = (mean * len(look.left) - spent) / min(jobs, len(look.left))
    return f"about {seconds_text(round(max(0.0, left)))} left"


def figure_text(best: Best, figures: Mapping[str, float]) -> str:
    """The figure by which runs are compared, as text.

    Example:
      >>> figure_text(Best("test_accuracy", 1), {"best_test_accuracy": 0.975})
      'best test accuracy 97.50 %'
    """
    value = figures.get(best.key, math.nan)
    text = percent_text if best.column.endswith("accuracy") else number_text
    shown = MISSING if math.isnan(value) else text(value)
    return f"best {best.column.replace('_', ' ')} {shown}"


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.8g}"

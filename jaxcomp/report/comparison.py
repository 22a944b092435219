"""The page that compares runs, and the best of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.files import write_atomically
from jaxcomp.core.units import (
    MISSING,
    bytes_text,
    seconds_text,
    times_fewer,
    times_text,
)
from jaxcomp.report import grouping
from jaxcomp.report.charts import Judged, judged, message_bytes, plots_of
from jaxcomp.report.grouping import RunGroup, group_runs
from jaxcomp.report.page import draw_plot, render
from jaxcomp.report.plot import Axis, Panel, Plot, Series, rounded
from jaxcomp.report.run_folder import (
    Run,
    alarms,
    flatten,
    provenance,
    read_run,
    run_status,
)
from jaxcomp.report.svg import slot_class
from jaxcomp.runs.folder import RunError

_COMMON = ("model", "dataset")


def write_comparison(folders: Sequence[Path], file: Path, title: str = "") -> Path:
    """Write a page of several runs.

    Args:
      folders: of runs. Those that cannot be read are named on the page.
      file: the page, which is replaced in one step.
      title: of the page; "" for one that counts the runs.

    Returns:
      The written file.

    Raises:
      RunError: no folder holds a run.
    """
    found = find_runs([Path(folder) for folder in folders])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render_comparison(found, title))
    return file


class Found(NamedTuple):
    """The runs of some folders, and what is wrong with the others."""

    folders: list[Path]  # of the runs, in their order
    runs: list[Run]
    problems: list[str]


def find_runs(folders: Sequence[Path]) -> Found:
    """Read folders; those that cannot be read are named, and do not stop the others.

    Raises:
      RunError: none of them holds a run.
    """
    unique = list({folder.resolve(): folder for folder in folders}.values())
    found = Found([], [], [])
    for folder in unique:
        try:
            run = read_run(folder)
        except (RunError, OSError) as error:
            found.problems.append(str(error))
            continue
        found.folders.append(folder)
        found.runs.append(run)
    if not found.runs:
        raise RunError("\n".join(found.problems) or "no folder was given")
    return found


def render_comparison(found: Found, title: str = "") -> str:
    """The page of several runs; the same runs give the same text.

    Args:
      found: from `find_runs`.
      title: of the page; "" for one that counts the runs.
    """
    groups, measure = group_runs(found.runs), judged(found.runs)
    number, methods = len(found.runs), len(groups)
    counted = f"{number} run{'s' * (number > 1)}"
    of = f", {methods} settings" if 1 < methods < number else ""
    best = [best_of(group, measure) for group in groups]
    return render(
        "comparison.html",
        title=title or f"Comparison of {counted}",
        subtitle=_common(found.runs) + of,
        problems=found.problems,
        alarms=[f"{run.name}: {text}" for run in found.runs for text in alarms(run)],
        table=_best_table(best, measure),
        rule=rule(best, measure),
        plots=[draw_plot(name, p) for name, p in comparison_plots(groups).items()],
        runs=_run_table(found, groups),
        shared=_shared(found.runs),
        commands=[(run.name, provenance(run).command) for run in found.runs],
    )


def comparison_plots(groups: Sequence[RunGroup]) -> dict[str, Plot]:
    """The plots of several runs, by name."""
    measure = judged([run for group in groups for run in group.runs])
    first = trade_off([best_of(group, measure) for group in groups], measure)
    return ({"trade_off": first} if first else {}) | plots_of(groups)


def _common(runs: Sequence[Run]) -> str:
    """What all runs have in common, in a few words."""
    texts = [{str(run.config.get(key, "")) for run in runs} for key in _COMMON]
    texts.append({grouping.workers_text(run.config) for run in runs})
    same = [values.pop() for values in texts if len(values) == 1]
    return ", ".join(filter(None, same)) or "runs side by side"


def _run_table(found: Found, groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """A row for each folder: what it holds, and how it ended."""
    labels = {id(run): group.label for group in groups for run in group.runs}
    return [
        {
            "run": run.name,
            "drawn as": labels[id(run)],
            "method": grouping.method_names(run.config, run.environment) or MISSING,
            "seed": str(run.config.get("seed", MISSING)),
            "ended": run_status(run).text,
            "folder": str(folder),
        }
        for run, folder in zip(found.runs, found.folders, strict=True)
    ]


def _shared(runs: Sequence[Run]) -> dict[str, str]:
    """The part of the configs that all runs have in common."""
    first, *others = [flatten(run.config).items() for run in runs]
    return {k: v for k, v in first if all((k, v) in config for config in others)}


class Best(NamedTuple):
    """The best of each run of a group; means over the runs and their range."""

    group: RunGroup
    unfinished: str  # how far those have come that are not at their end; "": all are
    value: float
    low: float
    high: float
    epoch: float  # of the best
    last: float  # the value at the end
    left: float  # bytes that left a worker, device or host in the whole run
    exact: float  # what would have left it with `exact`
    message: float  # bytes of a worker's or device's messages
    seconds: float

    @property
    def rival(self) -> float:
        """The value, if all runs have ended: only then it can be the best of all.

        A run that diverged has come to its end, as far as anybody knows.
        """
        return float("nan") if self.unfinished else self.value


def best_of(group: RunGroup, measure: Judged) -> Best:
    """The best of each run of a group: means over the runs."""
    table = np.array([_figures(run, measure) for run in group.runs])
    value, *others = table.mean(axis=0).tolist()
    ends = [run_status(run) for run in group.runs]
    open_ends = [end.text for end in ends if end.kind in ("unfinished", "failed")]
    so_far = "; ".join(dict.fromkeys(open_ends))
    low, high = float(table[:, 0].min()), float(table[:, 0].max())
    return Best(group, so_far, value, low, high, *others)


def _figures(run: Run, measure: Judged) -> list[float]:
    """What `Best` has of a run: the value and what stands after the range."""
    values, columns = measure.of(run), run.metrics
    seen = np.flatnonzero(np.isfinite(values))
    best = measure.best(values) if seen.size else 0
    last = values[seen[-1]] if seen.size else np.nan
    left, exact = columns["bytes_left"][-1], columns["exact_bytes_left"][-1]
    ends = (left, exact, message_bytes(run)[-1], columns["seconds"][-1])
    return [float(x) for x in (values[best], columns["epoch"][best], last, *ends)]


def are_comparable(found: Sequence[Best]) -> bool:
    """Whether the groups had the same to learn, so that one can be the best of them."""
    configs = [run.config for one in found for run in one.group.runs]
    return len({(str(c.get("task")), str(c.get("dataset"))) for c in configs}) == 1


def winner(found: Sequence[Best], measure: Judged) -> Best | None:
    """The best group; of equal ones, the one whom the least left.

    Groups that have not come to their end are left out. None where the groups had
    different things to learn, or nothing was measured.
    """
    values = np.array([one.rival for one in found])
    if not are_comparable(found) or not np.isfinite(values).any():
        return None
    equal = [one for one in found if one.rival == values[measure.best(values)]]
    return equal[int(np.argmin(np.nan_to_num([o.left for o in equal], nan=np.inf)))]


def rule(found: Sequence[Best], measure: Judged) -> str:
    """How the best was chosen, in words."""
    ways = "highest" if measure.higher else "lowest"
    text = f"A run's best is the {ways} {measure.title} of any epoch"
    if measure.column.startswith("test_"):
        text += (
            "; choosing the epoch by the test set flatters every run, so the value "
            "of the last epoch stands beside it"
        )
    if max(len(one.group.runs) for one in found) > 1:
        text += ". Runs that differ only in the seed are one row: means over the seeds"
    if not are_comparable(found):
        return (
            f"{text}. The runs had different things to learn, so that none is marked."
        )
    if any(one.unfinished for one in found):
        text += ". What is said of a run that has not ended is of its steps so far"
    marked = f"Marked is the row whose best is {ways}, of runs that have ended; of"
    return f"{text}. {marked} equal ones, the one with the fewest bytes."


def front(
    points: Sequence[tuple[float, float]], *, higher: bool
) -> list[tuple[float, float]]:
    """Bytes and values of those that nothing beats in both, with the least bytes first.

    Example:
      >>> front([(5.0, 0.9), (6.0, 0.8), (9.0, 0.95)], higher=True)
      [(5.0, 0.9), (9.0, 0.95)]
    """
    sign = 1 if higher else -1
    steps: list[tuple[float, float]] = []
    known = [point for point in points if np.isfinite(point).all()]
    for left, value in sorted(known, key=lambda point: (point[0], -sign * point[1])):
        if not steps or sign * value > sign * steps[-1][1]:
            steps.append((left, value))
    return steps


def trade_off(found: Sequence[Best], measure: Judged) -> Plot | None:
    """What each group reached over what it sent; None without bytes or values."""
    series = [
        Series(
            one.group.key,
            one.group.label,
            slot,
            *(np.array([x]) for x in (one.left, one.rival, one.low, one.high)),
            points=True,
            short=one.group.short,
        )
        for slot, one in enumerate(found)
        if np.isfinite([one.left, one.rival]).all() and one.left > 0
    ]
    if len(series) < 2:
        return None
    left = [float(one.x[0]) for one in series]
    who = grouping.link_owner([run for one in found for run in one.group.runs])
    across = Axis(f"bytes that left one {who} in the whole run", "bytes")
    points = [(one.left, one.rival) for one in found]
    panel = Panel(
        across._replace(log=max(left) > 4 * min(left)),
        Axis(f"best {measure.title}", measure.unit),
        series,
        front=front(points, higher=measure.higher),
    )
    better = "left and up" if measure.higher else "left and down"
    caption = (
        f"The best {measure.title} of each group over the bytes that it cost: better "
        f"is {better}. The dashed line is the Pareto front: no group has both a better "
        "value and fewer bytes than those on it. Bars reach from the lowest to the "
        "highest of the seeds."
    )
    title = f"{measure.title.capitalize()} against bytes"
    return Plot(title, caption, [panel], wide=True)


class Cell(NamedTuple):
    """A cell of a table that can be sorted."""

    text: str
    value: float | None = None  # None: sorted by the text


def _best_table(found: Sequence[Best], measure: Judged) -> dict[str, Any]:
    """The heads and rows of the table, as the template of a comparison takes them."""
    runs = [run for one in found for run in one.group.runs]
    best = winner(found, measure)
    left, messages = grouping.link_owner(runs), grouping.message_owner(runs)

    def column(text: Callable[[float], str], of: Callable[[Best], float]) -> list[Cell]:
        return [Cell(text(of(one)), of(one)) for one in found]

    figures = {
        f"best {measure.title}": column(measure.text, lambda x: x.value),
        "range": [_spread(one, measure) for one in found],
        "in epoch": column(rounded, lambda x: x.epoch),
        "at the end": column(measure.text, lambda x: x.last),
        "ended": [Cell(one.unfinished or "yes") for one in found],
        f"left a {left}": column(bytes_text, lambda x: x.left),
        "ratio": column(times_text, lambda x: times_fewer(x.exact, x.left)),
        f"messages of a {messages}": column(bytes_text, lambda x: x.message),
        "time": column(seconds_text, lambda x: x.seconds),
        "seeds": column(rounded, lambda x: len(x.group.runs)),
    }
    of_use = {
        "range": len(runs) > len(found),
        "ended": any(one.unfinished for one in found),
        "time": np.isfinite([one.seconds for one in found]).any(),
        "seeds": len(runs) > len(found),
    }
    figures = {head: cells for head, cells in figures.items() if of_use.get(head, True)}
    settings = [grouping.settings_of(one.group.runs[0]) for one in found]
    words = {
        key: [Cell(setting.of(key) or MISSING) for setting in settings]
        for key in grouping.different_keys([one.group.runs for one in found])
    }
    columns = list((figures | words).values())
    rows = [
        {
            "label": one.group.short or one.group.label,
            "slot": slot_class(slot),
            "best": one is best,
            "cells": [cells[slot] for cells in columns],
        }
        for slot, one in enumerate(found)
    ]
    heads = ["runs", *figures, *words]
    return {"heads": heads, "figures": 1 + len(figures), "rows": rows}


def _spread(one: Best, measure: Judged) -> Cell:
    if one.low == one.high:
        return Cell(MISSING, 0.0)
    text = f"{measure.text(one.low)} to {measure.text(one.high)}"
    return Cell(text, one.high - one.low)

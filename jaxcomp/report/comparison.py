"""The page that compares runs, and the best of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.units import (
    MISSING,
    bytes_text,
    seconds_text,
    times_fewer,
    times_text,
)
from jaxcomp.report.figures import (
    Judged,
    RunGroup,
    different_keys,
    group_runs,
    judged,
    message_bytes,
    method_names,
    plots_of,
)
from jaxcomp.report.page import draw_plot, render
from jaxcomp.report.plot import Axis, Panel, Plot, Series, rounded
from jaxcomp.report.run_folder import (
    Run,
    alarms,
    ending,
    flatten,
    leaver,
    provenance,
    read_run,
    sender,
    settings_of,
    workers_text,
)
from jaxcomp.report.svg import slot_class
from jaxcomp.runs.folder import RunError


class Best(NamedTuple):
    """The best of each run of a group; means over the runs and their range."""

    value: float
    low: float
    high: float
    epoch: float  # of the best
    last: float  # the value at the end
    left: float  # bytes that left a worker, device or host in the whole run
    exact: float  # what would have left it with `exact`
    message: float  # bytes of a worker's or device's messages
    seconds: float


def best_of(group: RunGroup, measure: Judged) -> Best:
    """The best of each run of a group: means over the runs."""
    table = np.array([_of_run(run, measure) for run in group.runs], float)
    value, *others = table.mean(axis=0).tolist()
    values = table[:, 0]
    return Best(value, float(values.min()), float(values.max()), *others)


def are_comparable(groups: Sequence[RunGroup]) -> bool:
    """Whether the groups had the same to learn, so that one can be the best of them."""
    configs = [run.config for group in groups for run in group.runs]
    return len({(str(c.get("task")), str(c.get("dataset"))) for c in configs}) == 1


def winner(
    groups: Sequence[RunGroup], found: Sequence[Best], measure: Judged
) -> int | None:
    """The place of the best group; of equal ones, of the one whom the least left.

    Groups that have not come to their end are left out. None where the groups had
    different things to learn, or nothing was measured.
    """
    if not are_comparable(groups):
        return None
    values = np.array([one.value for one in _of_ended(groups, found)])
    if not np.isfinite(values).any():
        return None
    top = values[measure.best(values)]
    equal = np.flatnonzero(values == top)
    left = np.nan_to_num([found[int(i)].left for i in equal], nan=np.inf)
    return int(equal[np.argmin(left)])


def unfinished(group: RunGroup) -> str:
    """How far the runs of a group have come that are not at their end; "" if all are.

    A run that diverged has come to its end, as far as anybody knows.
    """
    ends = [ending(run) for run in group.runs]
    texts = [end.text for end in ends if end.kind in ("unfinished", "failed")]
    return "; ".join(dict.fromkeys(texts))


def rule(measure: Judged, groups: Sequence[RunGroup]) -> str:
    """How the best was chosen, in words."""
    ways = "highest" if measure.higher else "lowest"
    text = f"A run's best is the {ways} {measure.title} of any epoch"
    if measure.column.startswith("test_"):
        text += (
            "; choosing the epoch by the test set flatters every run, so the value "
            "of the last epoch stands beside it"
        )
    if max(len(group.runs) for group in groups) > 1:
        text += ". Runs that differ only in the seed are one row: means over the seeds"
    if not are_comparable(groups):
        return (
            f"{text}. The runs had different things to learn, so that none is marked."
        )
    if any(map(unfinished, groups)):
        text += ". What is said of a run that has not ended is of its steps so far"
    marked = f"Marked is the row whose best is {ways}, of runs that have ended; of"
    return f"{text}. {marked} equal ones, the one with the fewest bytes."


def front(found: Sequence[Best], measure: Judged) -> list[tuple[float, float]]:
    """Bytes and values of those that nothing beats in both, with the least bytes first.

    Example:
      >>> three = [(0.9, 5.0), (0.8, 6.0), (0.95, 9.0)]
      >>> found = [Best(v, v, v, 1.0, v, left, 9.0, 9.0, 1.0) for v, left in three]
      >>> front(found, Judged("test_accuracy", "percent", True))
      [(5.0, 0.9), (9.0, 0.95)]
    """
    sign = 1 if measure.higher else -1
    steps: list[tuple[float, float]] = []
    for one in sorted(found, key=lambda one: (one.left, -sign * one.value)):
        if not np.isfinite([one.left, one.value]).all():
            continue
        if not steps or sign * one.value > sign * steps[-1][1]:
            steps.append((one.left, one.value))
    return steps


def trade_off(groups: Sequence[RunGroup], measure: Judged) -> Plot | None:
    """What each group reached over what it sent; None without bytes or values."""
    found = _of_ended(groups, [best_of(group, measure) for group in groups])
    series = [
        Series(
            group.key,
            group.label,
            slot,
            *(np.array([x]) for x in (one.left, one.value, one.low, one.high)),
            points=True,
            short=group.short,
        )
        for slot, (group, one) in enumerate(zip(groups, found, strict=True))
        if np.isfinite([one.left, one.value]).all() and one.left > 0
    ]
    if len(series) < 2:
        return None
    left = [float(one.x[0]) for one in series]
    who = leaver([run for group in groups for run in group.runs])
    across = Axis(f"bytes that left one {who} in the whole run", "bytes")
    panel = Panel(
        across._replace(log=max(left) > 4 * min(left)),
        Axis(f"best {measure.title}", measure.unit),
        series,
        front=front(found, measure),
    )
    better = "left and up" if measure.higher else "left and down"
    caption = (
        f"The best {measure.title} of each group over the bytes that it cost: better "
        f"is {better}. The dashed line is the Pareto front: no group has both a better "
        "value and fewer bytes than those on it. Bars reach from the lowest to the "
        "highest of the seeds."
    )
    return Plot(
        f"{measure.title.capitalize()} against bytes", caption, [panel], wide=True
    )


def _of_ended(groups: Sequence[RunGroup], found: Sequence[Best]) -> list[Best]:
    """The figures, without a value for a group that has not come to its end."""
    return [
        one._replace(value=float("nan")) if unfinished(group) else one
        for group, one in zip(groups, found, strict=True)
    ]


def _of_run(run: Run, measure: Judged) -> list[float]:
    """What `Best` has without the range."""
    values, epochs = run.metrics[measure.column], run.metrics["epoch"]
    seen = np.flatnonzero(np.isfinite(values))
    best = measure.best(values) if seen.size else 0
    last = values[seen[-1]] if seen.size else np.nan
    ends = [run.metrics[name][-1] for name in ("bytes_left", "exact_bytes_left")]
    ends += [message_bytes(run)[-1], run.metrics["seconds"][-1]]
    return [float(figure) for figure in (values[best], epochs[best], last, *ends)]


class Cell(NamedTuple):
    """A cell of a table that can be sorted."""

    text: str
    value: float | None = None  # None: sorted by the text


class _Column(NamedTuple):
    head: str
    cell: Callable[[RunGroup, Best], Cell]
    is_shown: bool = True


def best_table(groups: Sequence[RunGroup], measure: Judged) -> dict[str, Any]:
    """The heads and rows of the table, as the template of a comparison takes them."""
    found = [best_of(group, measure) for group in groups]
    best, keys = (
        winner(groups, found, measure),
        different_keys([g.runs for g in groups]),
    )
    columns = [c for c in _figures(groups, found, measure) if c.is_shown]
    words = [_Column(key, _config_cell(key)) for key in keys]
    rows = [
        {
            "label": group.short or group.label,
            "slot": slot_class(slot),
            "best": slot == best,
            "cells": [column.cell(group, one) for column in (*columns, *words)],
        }
        for slot, (group, one) in enumerate(zip(groups, found, strict=True))
    ]
    heads = ["runs", *(column.head for column in (*columns, *words))]
    return {"heads": heads, "figures": 1 + len(columns), "rows": rows}


def _figures(
    groups: Sequence[RunGroup], found: Sequence[Best], measure: Judged
) -> list[_Column]:
    several = max(len(group.runs) for group in groups) > 1
    runs = [run for group in groups for run in group.runs]
    open_ends = [unfinished(group) for group in groups]
    timed = bool(np.isfinite([one.seconds for one in found]).any())

    def cell(
        text: Callable[[float], str], of: Callable[[Best], float]
    ) -> Callable[[RunGroup, Best], Cell]:
        return lambda _, one: Cell(text(of(one)), of(one))

    def spread(group: RunGroup, one: Best) -> Cell:
        if one.low == one.high:
            return Cell(MISSING, 0.0)
        text = f"{measure.text(one.low)} to {measure.text(one.high)}"
        return Cell(text, one.high - one.low)

    def count(group: RunGroup, one: Best) -> Cell:
        return Cell(str(len(group.runs)), len(group.runs))

    return [
        _Column(f"best {measure.title}", cell(measure.text, lambda x: x.value)),
        _Column("range", spread, several),
        _Column("in epoch", cell(rounded, lambda x: x.epoch)),
        _Column("at the end", cell(measure.text, lambda x: x.last)),
        _Column("ended", lambda g, _: Cell(unfinished(g) or "yes"), any(open_ends)),
        _Column(f"left a {leaver(runs)}", cell(bytes_text, lambda x: x.left)),
        _Column("ratio", cell(times_text, lambda x: times_fewer(x.exact, x.left))),
        _Column(f"messages of a {sender(runs)}", cell(bytes_text, lambda x: x.message)),
        _Column("time", cell(seconds_text, lambda x: x.seconds), timed),
        _Column("seeds", count, several),
    ]


def _config_cell(key: str) -> Callable[[RunGroup, Best], Cell]:
    return lambda group, _: Cell(settings_of(group.runs[0]).of(key) or MISSING)


_COMMON = ("model", "dataset")


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


def comparison_plots(groups: Sequence[RunGroup]) -> dict[str, Plot]:
    """The plots of several runs, by name."""
    runs = [run for group in groups for run in group.runs]
    first = trade_off(groups, judged(runs))
    return ({"trade_off": first} if first else {}) | plots_of(groups)


def render_comparison(found: Found, title: str = "", note: str = "") -> str:
    """The page of several runs; the same runs give the same text.

    Args:
      found: from `find_runs`.
      title: of the page; "" for one that counts the runs.
      note: a person's own words, shown at the top.
    """
    groups, measure = group_runs(found.runs), judged(found.runs)
    number, methods = len(found.runs), len(groups)
    counted = f"{number} run{'s' * (number > 1)}"
    of = f", {methods} settings" if 1 < methods < number else ""
    return render(
        "comparison.html",
        title=title or f"Comparison of {counted}",
        subtitle=_common(found.runs) + of,
        note=note,
        problems=found.problems,
        alarms=[f"{run.name}: {text}" for run in found.runs for text in alarms(run)],
        table=best_table(groups, measure),
        rule=rule(measure, groups),
        plots=[draw_plot(name, p) for name, p in comparison_plots(groups).items()],
        runs=_run_table(found, groups),
        shared=_shared(found.runs),
        commands=[(run.name, provenance(run).command) for run in found.runs],
    )


def _common(runs: Sequence[Run]) -> str:
    """What all runs have in common, in a few words."""
    texts = [{str(run.config.get(key, "")) for run in runs} for key in _COMMON]
    texts.append({workers_text(run.config) for run in runs})
    same = [values.pop() for values in texts if len(values) == 1]
    return ", ".join(filter(None, same)) or "runs side by side"


def _run_table(found: Found, groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """A row for each folder: what it holds, and how it ended."""
    labels = {id(run): group.label for group in groups for run in group.runs}
    return [
        {
            "run": run.name,
            "drawn as": labels[id(run)],
            "method": method_names(run.config, run.environment) or MISSING,
            "seed": str(run.config.get("seed", MISSING)),
            "ended": ending(run).text,
            "folder": str(folder),
        }
        for run, folder in zip(found.runs, found.folders, strict=True)
    ]


def _shared(runs: Sequence[Run]) -> dict[str, str]:
    """The part of the configs that all runs have in common."""
    first, *others = [flatten(run.config) for run in runs]
    return {
        key: text
        for key, text in first.items()
        if all(config.get(key) == text for config in others)
    }

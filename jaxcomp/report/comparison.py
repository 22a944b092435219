"""The page of several runs: the same curves overlaid, and a table of the best."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.report.best import Best, best_of, rule, seeds, trade_off, winner
from jaxcomp.report.convex_figures import convex_plots
from jaxcomp.report.endings import ending
from jaxcomp.report.figure_html import draw_plot
from jaxcomp.report.figures import plots_of
from jaxcomp.report.groups import Group, different_keys, group_runs
from jaxcomp.report.measure import Judged, judged
from jaxcomp.report.page import render
from jaxcomp.report.plot import Plot
from jaxcomp.report.provenance import flatten, provenance
from jaxcomp.report.run_folder import Run, holds_convex, read_any
from jaxcomp.report.svg import slot_class
from jaxcomp.report.titles import method_names
from jaxcomp.report.units import rounded
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.units import MISSING, bytes_text, seconds_text, times_text

__all__ = ["Found", "comparison_plots", "find_runs", "render_comparison"]


class Found(NamedTuple):
    """The runs of some folders, and what is wrong with the others."""

    folders: list[Path]  # of the runs, in their order
    runs: list[Run]
    problems: list[str]


class Cell(NamedTuple):
    """A cell of a table that can be sorted."""

    text: str
    value: float | None = None  # None: sorted by the text


def find_runs(folders: Sequence[Path]) -> Found:
    """Read folders; those that cannot be read are named, and do not stop the others.

    Raises:
      RunError: none of them holds a run, or they hold runs of both kinds.
    """
    unique = list({folder.resolve(): folder for folder in folders}.values())
    found = Found([], [], [])
    for folder in unique:
        try:
            run = read_any(folder)
        except (RunError, OSError) as error:
            found.problems.append(str(error))
            continue
        found.folders.append(folder)
        found.runs.append(run)
    if not found.runs:
        raise RunError("\n".join(found.problems) or "no folder was given")
    convex = [holds_convex(run) for run in found.runs]
    if any(convex) and not all(convex):
        one, other = (found.folders[convex.index(kind)] for kind in (True, False))
        raise RunError(
            f"{one} holds a convex run and {other} does not: compare either convex "
            "runs or training runs"
        )
    return found


def comparison_plots(groups: Sequence[Group]) -> dict[str, Plot]:
    """The plots of several runs, by name."""
    runs = [run for group in groups for run in group.runs]
    if holds_convex(runs[0]):
        return convex_plots(groups)
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
        alarms=_alarms(found),
        table=_best_table(groups, measure),
        rule=rule(measure, groups),
        plots=[draw_plot(name, p) for name, p in comparison_plots(groups).items()],
        runs=_run_table(found, groups),
        shared=_shared(groups),
        commands=[(run.name, provenance(run).command) for run in found.runs],
    )


def _alarms(found: Found) -> list[str]:
    pairs = [(run.name, ending(run)) for run in found.runs]
    return [
        f"{name} diverged: {end.text}." for name, end in pairs if end.kind == "diverged"
    ]


def _common(runs: Sequence[Run]) -> str:
    """What all runs have in common, in a few words."""
    keys = ("problem",) if holds_convex(runs[0]) else ("model", "dataset", "workers")
    parts = []
    for key in keys:
        values = {str(run.config.get(key, "")) for run in runs}
        if len(values) == 1 and "" not in values:
            parts.append(
                f"{values.pop()} workers" if key == "workers" else values.pop()
            )
    return ", ".join(parts) or "runs side by side"


def _best_table(groups: Sequence[Group], measure: Judged) -> dict[str, object]:
    found = [best_of(group, measure) for group in groups]
    best, keys = winner(found, measure), different_keys([g.runs for g in groups])
    several = max(map(seeds, groups)) > 1
    timed = any(np.isfinite(one.seconds) for one in found)
    heads = ["", f"best {measure.title}", *(["range"] if several else [])]
    heads += ["in epoch", "at the end", "sent per worker", "ratio"]
    heads += [*(["time"] if timed else []), *(["seeds"] if several else []), *keys]
    rows = []
    for i, (group, one) in enumerate(zip(groups, found, strict=True)):
        config = flatten(group.runs[0].config)
        cells = [Cell(measure.text(one.value), one.value)]
        cells += [Cell(_range(one, measure), one.high - one.low)] if several else []
        cells += [
            Cell(rounded(one.epoch), one.epoch),
            Cell(measure.text(one.last), one.last),
            Cell(bytes_text(one.sent), one.sent),
            Cell(times_text(_ratio(one)), _ratio(one)),
        ]
        cells += [Cell(seconds_text(one.seconds), one.seconds)] if timed else []
        cells += [Cell(str(seeds(group)), seeds(group))] if several else []
        cells += [Cell(config.get(key) or MISSING) for key in keys]
        rows.append(
            {
                "key": group.key,
                "label": group.short or group.label,
                "slot": slot_class(i),
                "best": i == best,
                "cells": cells,
            }
        )
    return {"heads": heads, "figures": len(heads) - len(keys), "rows": rows}


def _range(one: Best, measure: Judged) -> str:
    if one.low == one.high:
        return MISSING
    return f"{measure.text(one.low)} to {measure.text(one.high)}"


def _ratio(one: Best) -> float:
    return one.dense / one.sent if one.sent else float("nan")


def _run_table(found: Found, groups: Sequence[Group]) -> list[dict[str, str]]:
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


def _shared(groups: Sequence[Group]) -> dict[str, str]:
    """The part of the configs that all runs have in common."""
    keys = {*different_keys([group.runs for group in groups]), "seed"}
    config = flatten(groups[0].runs[0].config)
    return {key: text for key, text in config.items() if key not in keys}

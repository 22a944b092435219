"""The page of several runs: the same curves overlaid, and a table of the best."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxcomp.report.best import rule, trade_off
from jaxcomp.report.best_table import best_table
from jaxcomp.report.convex_figures import convex_plots
from jaxcomp.report.endings import alarms, ending
from jaxcomp.report.figure_html import draw_plot
from jaxcomp.report.figure_plots import plots_of
from jaxcomp.report.groups import Group, group_runs
from jaxcomp.report.measure import judged
from jaxcomp.report.page import render
from jaxcomp.report.plot import Plot
from jaxcomp.report.provenance import flatten, provenance
from jaxcomp.report.run_folder import Run, holds_convex, read_any
from jaxcomp.report.titles import convex_problem, method_names
from jaxcomp.report.whose import workers_text
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.units import MISSING

__all__ = ["Found", "comparison_plots", "find_runs", "render_comparison"]

_COMMON = ("model", "dataset")


class Found(NamedTuple):
    """The runs of some folders, and what is wrong with the others."""

    folders: list[Path]  # of the runs, in their order
    runs: list[Run]
    problems: list[str]


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
    if holds_convex(runs[0]):
        problems = {convex_problem(run.config) for run in runs}
        return problems.pop() if len(problems) == 1 else "several problems"
    texts = [{str(run.config.get(key, "")) for run in runs} for key in _COMMON]
    texts.append({workers_text(run.config) for run in runs})
    same = [values.pop() for values in texts if len(values) == 1]
    return ", ".join(filter(None, same)) or "runs side by side"


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


def _shared(runs: Sequence[Run]) -> dict[str, str]:
    """The part of the configs that all runs have in common."""
    first, *others = [flatten(run.config) for run in runs]
    return {
        key: text
        for key, text in first.items()
        if all(config.get(key) == text for config in others)
    }

"""The figures of convex runs: suboptimality over bytes and steps, and agreement."""

from collections.abc import Sequence

import numpy as np

from jaxcomp.report.evaluations import joined
from jaxcomp.report.figures import ACROSS
from jaxcomp.report.groups import Group
from jaxcomp.report.plot import Axis, Panel, Plot, Series
from jaxcomp.report.titles import convex_problem
from jaxcomp.runs.table import Table

__all__ = ["convex_plots"]

_CAPTION = (
    "Suboptimality f(x) − f*, where x is the mean over workers of their averaged "
    "models, over the bytes that have left one worker (left) and over steps (right). "
    "Lines are medians over the seeds, bands reach from the lowest to the highest."
)
_WORKERS = (
    "The suboptimality of the worst worker's own model, and the distance of the "
    "workers' models from their mean. Medians over the seeds, from lowest to highest."
)
_LEVEL = Axis("suboptimality f(x) − f*", "number", log=True)


def convex_plots(groups: Sequence[Group]) -> dict[str, Plot]:
    """The plots of convex runs; runs of one problem share a plot."""
    problems: dict[str, list[tuple[int, Group]]] = {}
    for slot, group in enumerate(groups):
        name = convex_problem(group.runs[0].config)
        problems.setdefault(name, []).append((slot, group))
    found = {}
    for i, (problem, members) in enumerate(problems.items()):
        of = f": {problem}" if len(problems) > 1 else ""
        end = f"_{i + 1}" if i else ""
        tables = [joined([run.metrics for run in group.runs]) for _, group in members]
        found[f"suboptimality{end}"] = Plot(
            f"Suboptimality{of}",
            _CAPTION,
            [
                _panel(members, tables, x, "suboptimality", _LEVEL)
                for x in ("bytes_left", "step")
            ],
            wide=True,
        )
        found[f"workers{end}"] = Plot(
            f"The workers' own models{of}",
            _WORKERS,
            [
                _panel(members, tables, "step", column, Axis(title, "number", log=True))
                for column, title in (
                    ("worst_suboptimality", "suboptimality of the worst worker"),
                    ("consensus_distance", "consensus distance"),
                )
            ],
            wide=True,
        )
    return found


def _panel(
    members: Sequence[tuple[int, Group]],
    tables: Sequence[Table],
    across: str,
    column: str,
    y: Axis,
) -> Panel:
    x = ACROSS["bytes" if across == "bytes_left" else across]._replace(log=True)
    series = []
    for (slot, group), table in zip(members, tables, strict=True):
        middle, low, high = (table[f"{column}{end}"] for end in ("", "_low", "_high"))
        high = np.where(np.isfinite(high), high, middle)
        series.append(
            Series(
                *(group.key, group.label, slot, table[across], middle, low, high),
                short=group.short,
            )
        )
    return Panel(x, y, series)

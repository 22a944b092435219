"""From the figures of the registry and the tables of runs to plots."""

from collections.abc import Sequence

import numpy as np

from jaxcomp.report.curves import points_of
from jaxcomp.report.figures import (
    ACROSS,
    REGISTRY,
    Curve,
    Figure,
    View,
    judged_by,
)
from jaxcomp.report.groups import Group
from jaxcomp.report.measure import measure_name
from jaxcomp.report.plot import Panel, Plot, Series
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title
from jaxcomp.report.whose import holder, leaver

__all__ = ["plots_of"]


def plots_of(groups: Sequence[Group]) -> dict[str, Plot]:
    """The figures for which runs have figures, as plots.

    Args:
      groups: one with one run, whose curves are all drawn; or more runs, of which each
        group is a curve.
    """
    runs = [run for group in groups for run in group.runs]
    alone = len(runs) == 1
    mixed = any(mixer_title(run.config) for run in runs)
    found = {}
    for name, figure in _registry(runs).items():
        panels = [_panel(view, groups, alone=alone) for view in figure.views]
        panels = [panel for panel in panels if panel.series]
        if panels:
            caption = figure.caption if alone else _of_many(figure, groups)
            caption += f" {figure.mixed}" if mixed and figure.mixed else ""
            # What captions say of workers, they say of those who have a model.
            title, caption = (
                text.replace("worker", holder(runs)) for text in (figure.title, caption)
            )
            found[name] = Plot(title, caption, panels, figure.switch)
    return found


def _registry(runs: Sequence[Run]) -> dict[str, Figure]:
    """The registry, with the figure of what the runs are measured by at its head."""
    name = measure_name(runs[0])
    if name == "accuracy":
        return REGISTRY
    return {name: judged_by(name), **REGISTRY}


def _panel(view: View, groups: Sequence[Group], *, alone: bool) -> Panel:
    if alone:
        run, curves = groups[0].runs[0], view.curves
        series = [_of_run(run, view, curve) for curve in curves]
    else:
        [curve] = [c for c in view.curves if c.label == view.compared] or view.curves
        series = [_of_group(i, group, view, curve) for i, group in enumerate(groups)]
    series = [one for one in series if np.isfinite(one.x).any()]
    ends = [float(one.x[-1]) for one in series if one.x.size]
    # One that sends a hundredth would be a vertical line beside one that sends all.
    is_log = view.across == "bytes" and max(ends, default=1) > 4 * min(ends, default=1)
    across = ACROSS[view.across]
    who = leaver([run for group in groups for run in group.runs])
    return Panel(
        across._replace(title=across.title.replace("worker", who), log=is_log),
        view.y._replace(most=view.most(series)),
        series,
        view.references,
    )


def _of_run(run: Run, view: View, curve: Curve) -> Series:
    found = points_of([run], curve.column, curve.table)
    low, high = found.low, found.high
    if curve.band:
        at = np.searchsorted(run.metrics["step"], found.step)
        worst = run.metrics[curve.band][at]
        worst = np.where(np.isfinite(worst), worst, found.value)
        low, high = np.minimum(found.value, worst), np.maximum(found.value, worst)
    name, x = curve.label or view.y.title, found.across[view.across]
    return Series(curve.column, name, curve.slot, x, found.value, low, high)


def _of_group(slot: int, group: Group, view: View, curve: Curve) -> Series:
    found = points_of(group.runs, curve.column, curve.table, alone=False)
    x = found.across[view.across]
    values = (x, found.value, found.low, found.high)
    return Series(group.key, group.label, slot, *values, short=group.short)


def _of_many(figure: Figure, groups: Sequence[Group]) -> str:
    """The caption of a figure in which each setting is one line."""
    several = max(len(group.runs) for group in groups) > 1
    lines = "Each line is one setting"
    if figure.views[0].compared:
        lines += f": its {figure.views[0].compared} {figure.views[0].y.title}"
    if several:
        lines += ", the mean over its seeds; bands reach from the lowest to the highest"
    # What is said of the curves of one run is not true of these.
    return f"{lines}." if figure.views[0].compared else f"{lines}. {figure.caption}"

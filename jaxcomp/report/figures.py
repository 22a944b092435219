"""The figures of training runs, by name: what is drawn, and what it means."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.curves import points_of
from jaxcomp.report.groups import Group
from jaxcomp.report.measure import measure_name
from jaxcomp.report.plot import Axis, Panel, Plot, Reference, Series
from jaxcomp.report.run_folder import Run
from jaxcomp.report.titles import mixer_title

__all__ = ["ACROSS", "REGISTRY", "Curve", "Figure", "View", "over_all", "plots_of"]

# What curves may be drawn over.
ACROSS = {
    "epoch": Axis("epoch", "count"),
    "step": Axis("step", "count"),
    "seconds": Axis("time of training, without compiling", "seconds"),
    "bytes": Axis("bytes that one worker has sent", "bytes"),
}


class Curve(NamedTuple):
    """A column of a table."""

    label: str  # in the figure of one run; "" where it is the only one
    column: str
    table: str = "metrics"  # or "steps"
    slot: int = 0  # its colour
    band: str = ""  # column to which a band reaches from the curve


class View(NamedTuple):
    """Some columns over one horizontal axis."""

    across: str  # a key of `ACROSS`
    y: Axis
    curves: Sequence[Curve]
    compared: str = ""  # the label of the curve that stands for a run among others
    references: Sequence[Reference] = ()


class Figure(NamedTuple):
    """Views side by side."""

    title: str
    caption: str
    views: Sequence[View]
    mixed: str = ""  # added to the caption where workers have models of their own
    switch: str = ""  # as of `Plot`


def over_all(y: Axis, curves: Sequence[Curve], compared: str = "") -> list[View]:
    """The same curves over epochs, seconds and bytes."""
    return [View(name, y, curves, compared) for name in ("epoch", "seconds", "bytes")]


_OF_MEAN = (
    "Each worker has a model of its own: test figures are those of the mean of the "
    "models."
)
_ERRORS = (Reference(0.0, "sending everything"), Reference(1.0, "sending nothing"))
_STEP_TIMES = Axis("time of a step", "seconds")


def _judged_by(name: str) -> Figure:
    """The figure of the measure of a task."""
    is_share = name == "accuracy"
    what = "Share of examples that were classified correctly: of" if is_share else "Of"
    return Figure(
        name.capitalize(),
        f"{what} the training batches, as they were logged, and of the test set.",
        over_all(
            Axis(name, "percent" if is_share else "number"),
            (
                Curve("train", name, "steps", 0),
                Curve("test", f"test_{name}", slot=1),
                Curve("own models", f"own_{name}", slot=2, band=f"worst_{name}"),
            ),
            "test",
        ),
        f"{_OF_MEAN} “Own models” is the mean of the workers' own models; its band "
        "reaches to the worst of them.",
    )


# In the order of the page. The names are those of PNG files, and ids in the page.
REGISTRY: dict[str, Figure] = {
    "accuracy": _judged_by("accuracy"),
    "loss": Figure(
        "Loss",
        "Loss of the training batches as it was logged, and of the test set.",
        over_all(
            Axis("loss", "number"),
            (
                Curve("train", "loss", "steps", 0),
                Curve("test", "test_loss", slot=1),
            ),
            "train",
        ),
        _OF_MEAN,
        switch="logarithmic loss",
    ),
    "compression": Figure(
        "What compression saves and loses",
        "Gradient error: |sent − given|² / |given|², where “given” is the gradient "
        "plus what earlier steps did not send. 0 is sending everything, 1 is as much "
        "error as sending nothing. A value just below 1 is usual where few elements "
        "are sent: the memory keeps the rest for later steps. Its size is the residual "
        "norm, which levels off if the memory returns as much as it takes.",
        (
            View(
                "epoch",
                Axis("uncompressed bytes / sent bytes", "times"),
                (Curve("", "compression_ratio"),),
            ),
            View(
                "epoch",
                Axis("gradient error", "number"),
                (Curve("", "gradient_error", "steps", 1),),
                references=_ERRORS,
            ),
            View(
                "epoch",
                Axis("residual norm", "number"),
                (Curve("", "residual_norm", "steps", 2),),
            ),
        ),
        "Where workers mix their models, “given” is what the others do not know of a "
        "worker's model.",
    ),
    "consensus": Figure(
        "Agreement of the workers",
        "Consensus distance: how far the workers' models are from their mean, as the "
        "root of the mean squared distance at the end of each epoch.",
        over_all(
            Axis("consensus distance", "number"), (Curve("", "consensus_distance"),)
        ),
        switch="logarithmic distance",
    ),
    "time": Figure(
        "Speed and learning rate",
        "Computing, preparing data, and waiting for the figures, as they were logged. "
        "The first step also compiles.",
        (
            View(
                "step",
                _STEP_TIMES,
                (
                    Curve("computing", "step_seconds", "steps", 0),
                    Curve("data", "data_seconds", "steps", 4),
                    Curve("wait", "wait_seconds", "steps", 5),
                ),
                "computing",
            ),
            View(
                "step",
                Axis("examples per second", "count"),
                (Curve("", "images_per_second", "steps", 2),),
            ),
            View(
                "epoch",
                Axis("learning rate", "number"),
                (Curve("", "learning_rate", "steps", 3),),
            ),
        ),
    ),
}


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
            found[name] = Plot(figure.title, caption, panels, figure.switch)
    return found


def _registry(runs: Sequence[Run]) -> dict[str, Figure]:
    """The registry, with the figure of what the runs are measured by at its head."""
    name = measure_name(runs[0])
    if name == "accuracy":
        return REGISTRY
    return {name: _judged_by(name), **REGISTRY}


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
    return Panel(
        ACROSS[view.across]._replace(log=is_log),
        view.y._replace(most=_end_of(view, series)),
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


def _end_of(view: View, series: Sequence[Series]) -> float:
    """Where the axis of a loss ends: a run that diverged would flatten all others.

    Compiling the first step does the same to times.
    """
    if view.y.title == "loss":
        return 2.0 * max((float(one.y[0]) for one in series), default=np.inf)
    if view.y is _STEP_TIMES:
        return 4.0 * max((float(np.median(one.y)) for one in series), default=np.inf)
    return float("inf")

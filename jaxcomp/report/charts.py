"""The charts of a report: which columns of runs they show, as plots."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.report.grouping import RunGroup, link_owner, mixer_title, model_owner
from jaxcomp.report.plot import UNITS, Axis, Panel, Plot, Reference, Series, Unit
from jaxcomp.report.run_folder import Run
from jaxcomp.runs.table import Table

# What curves may be drawn over.
ACROSS = {
    "epoch": Axis("epoch", "count"),
    "step": Axis("step", "count"),
    "seconds": Axis("time of training, without compiling", "seconds"),
    "bytes": Axis("bytes that have left one worker", "bytes"),  # or what else
}


class Curve(NamedTuple):
    """A column of a table."""

    label: str  # in the figure of one run; "" where it is the only one
    column: str
    table: str = "metrics"  # or "steps"
    slot: int = 0  # its colour
    band: str = ""  # column to which a band reaches from the curve


def _no_end(series: Sequence[Series]) -> float:
    return float("inf")


def _twice_the_start(series: Sequence[Series]) -> float:
    """The loss of a run that diverged would flatten all others."""
    return 2.0 * max((float(one.y[0]) for one in series), default=np.inf)


def _four_medians(series: Sequence[Series]) -> float:
    """The first step compiles, and may take a thousand times longer than the others."""
    return 4.0 * max((float(np.median(one.y)) for one in series), default=np.inf)


class ChartView(NamedTuple):
    """Some columns over one horizontal axis."""

    across: str  # a key of `ACROSS`
    y: Axis
    curves: Sequence[Curve]
    compared: str = ""  # the label of the curve that stands for a run among others
    references: Sequence[Reference] = ()
    # Where the vertical axis ends, although a curve may go on.
    most: Callable[[Sequence[Series]], float] = _no_end


class Chart(NamedTuple):
    """Views side by side."""

    title: str
    caption: str
    views: Sequence[ChartView]
    mixed: str = ""  # added to the caption where workers have models of their own
    switch: str = ""  # as of `Plot`


def over_all(*view: Any, **more: Any) -> list[ChartView]:
    """The same view over epochs, seconds and bytes."""
    return [ChartView(name, *view, **more) for name in ("epoch", "seconds", "bytes")]


_OF_MEAN = (
    "Each worker has a model of its own: test figures are those of the mean of the "
    "models."
)
_ERRORS = (Reference(0.0, "sending everything"), Reference(1.0, "sending nothing"))


def judged_by(name: str) -> Chart:
    """The chart of the measure of a task."""
    is_share = name == "accuracy"
    what = "Share of examples that were classified correctly: of" if is_share else "Of"
    return Chart(
        name.capitalize(),
        f"{what} the training batches, as they were logged, and of the test set.",
        over_all(
            Axis(
                name,
                "percent" if is_share else "number",
                log=name
                == "suboptimality",  # of a convex problem: it halves and halves
            ),
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


# In the order of the page. The names are those of SVG files, and ids in the page.
REGISTRY: dict[str, Chart] = {
    "accuracy": judged_by("accuracy"),
    "loss": Chart(
        "Loss",
        "Loss of the training batches as it was logged, and of the test set.",
        over_all(
            Axis("loss", "number"),
            (
                Curve("train", "loss", "steps", 0),
                Curve("test", "test_loss", slot=1),
            ),
            "train",
            most=_twice_the_start,
        ),
        _OF_MEAN,
        switch="logarithmic loss",
    ),
    "compression": Chart(
        "What compression saves and loses",
        "Gradient error: |sent − given|² / |given|², where “given” is the gradient "
        "plus what earlier steps did not send. 0 is sending everything, 1 is as much "
        "error as sending nothing. A value just below 1 is usual where few elements "
        "are sent: the memory keeps the rest for later steps. Its size is the residual "
        "norm, which levels off if the memory returns as much as it takes.",
        (
            ChartView(
                "epoch",
                Axis("times fewer bytes than exact, so far", "times"),
                (Curve("", "times_fewer"),),
            ),
            ChartView(
                "epoch",
                Axis("gradient error", "number"),
                (Curve("", "gradient_error", "steps", 1),),
                references=_ERRORS,
            ),
            ChartView(
                "epoch",
                Axis("residual norm", "number"),
                (Curve("", "residual_norm", "steps", 2),),
            ),
        ),
        "Where workers mix their models, “given” is what the others do not know of a "
        "worker's model.",
    ),
    "consensus": Chart(
        "Agreement of the workers",
        "Consensus distance: how far the workers' models are from their mean, as the "
        "root of the mean squared distance at the end of each epoch.",
        over_all(
            Axis("consensus distance", "number"), (Curve("", "consensus_distance"),)
        ),
        switch="logarithmic distance",
    ),
    "time": Chart(
        "Speed and learning rate",
        "Computing, preparing data, and waiting for the figures, as they were logged. "
        "The first step also compiles.",
        (
            ChartView(
                "step",
                Axis("time of a step", "seconds"),
                (
                    Curve("computing", "step_seconds", "steps", 0),
                    Curve("data", "data_seconds", "steps", 4),
                    Curve("wait", "wait_seconds", "steps", 5),
                ),
                "computing",
                most=_four_medians,
            ),
            ChartView(
                "step",
                Axis("examples per second", "count"),
                (Curve("", "images_per_second", "steps", 2),),
            ),
            ChartView(
                "epoch",
                Axis("learning rate", "number"),
                (Curve("", "learning_rate", "steps", 3),),
            ),
        ),
    ),
}

# The most points of a curve, alone and among others.
MANY, _FEW = 120, 48


class Points(NamedTuple):
    """A curve with all that it may be drawn over; one entry for each point."""

    step: np.ndarray
    across: Table  # by the keys of `ACROSS`; NaN where it was not recorded
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def points_of(
    runs: Sequence[Run], column: str, table: str = "metrics", *, alone: bool = True
) -> Points:
    """The curve of a column, over the runs of a group.

    Args:
      runs: one run, or several that differ in the seed.
      column: of the table; one that a run lacks has no points.
      table: "metrics" or "steps".
      alone: draw every detail: where there are more rows than points, a point is the
        mean of neighbouring rows, and its band reaches from the lowest to the highest.

    Returns:
      The mean over the runs; with several runs, the band is their range.
    """
    is_alone = alone and len(runs) == 1
    most = MANY if is_alone else _FEW
    curves = [_curve(run, column, table, most, band=is_alone) for run in runs]
    if len(curves) == 1:
        return curves[0]
    whole = [np.concatenate(arrays) for arrays in zip(*map(_flat, curves), strict=True)]
    step, value, *across = whole
    groups = [np.flatnonzero(step == each) for each in np.unique(step)]
    mean, low, high = (_over(groups, f, value) for f in (np.mean, np.min, np.max))
    means = [_over(groups, np.mean, parts) for parts in across]
    return Points(
        np.unique(step), dict(zip(ACROSS, means, strict=True)), mean, low, high
    )


def _flat(curve: Points) -> list[np.ndarray]:
    return [curve.step, curve.value, *(curve.across[name] for name in ACROSS)]


def _over(
    groups: Sequence[np.ndarray], reduce: Callable[..., Any], values: np.ndarray
) -> np.ndarray:
    return np.array([reduce(values[group]) for group in groups])


def _curve(run: Run, column: str, table: str, most: int, *, band: bool) -> Points:
    rows, ends = getattr(run, table), run.metrics
    values = rows.get(column, np.array([]))
    seen = np.flatnonzero(np.isfinite(values))
    groups = np.array_split(seen, min(most, max(1, seen.size)))  # neighbours
    groups = [group for group in groups if group.size]
    last = np.array([group[-1] for group in groups], int)
    step = rows["step"][last] if "step" in rows else np.array([])
    value, low, high = (_over(groups, f, values) for f in (np.mean, np.min, np.max))
    across = {
        "epoch": _at(step, ends["step"], ends["epoch"]),
        "step": step,
        "seconds": _at(step, ends["step"], ends["seconds"]),
        "bytes": _at(step, ends["step"], ends["bytes_left"]),
    }
    return Points(step, across, value, *((low, high) if band else (value, value)))


def _at(steps: np.ndarray, known: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Totals that are known at the ends of epochs, at other steps.

    They grow evenly within an epoch, and after the last one as in it.

    Example:
      >>> _at(np.array([5.0, 10.0, 15.0, 25.0]), np.array([10.0, 20.0]), np.arange(2.0))
      array([0. , 0. , 0.5, 1.5])
    """
    starts, sums = np.append(0.0, known), np.append(0.0, totals)
    found = np.interp(steps, starts, sums)
    slope = (sums[-1] - sums[-2]) / (starts[-1] - starts[-2])
    return np.where(steps > starts[-1], sums[-1] + slope * (steps - starts[-1]), found)


def message_bytes(run: Run) -> np.ndarray:
    """The bytes of all messages of one worker by the end of each epoch.

    Args:
      run: from `read_run`.

    Example:
      >>> columns = {"step": np.array([10.0, 20.0, 25.0])}
      >>> columns["wire_bytes_per_step"] = np.array([100.0, 100.0, 40.0])
      >>> message_bytes(Run("run", {}, {}, columns))
      array([1000., 2000., 2200.])
    """
    # The bytes of a step may change between epochs, so the total of the last epoch
    # is not its bytes per step times all steps.
    steps_of_epoch = np.diff(run.metrics["step"], prepend=0.0)
    return np.cumsum(steps_of_epoch * run.metrics["wire_bytes_per_step"])


class Judged(NamedTuple):
    """A column by which runs are compared."""

    column: str  # of metrics.csv
    unit: Unit
    higher: bool  # whether more is better

    @property
    def title(self) -> str:
        """In words."""
        return self.column.replace("_", " ")

    def text(self, value: float) -> str:
        """A value as text."""
        return UNITS[self.unit].value(value)

    def of(self, run: Run) -> np.ndarray:
        """The values of a run at the ends of epochs; NaN where it has none."""
        return run.metrics.get(self.column, np.full(run.metrics["step"].size, np.nan))

    def best(self, values: np.ndarray) -> int:
        """The place of the best number, the first of equal ones.

        Example:
          >>> Judged("test_loss", "number", False).best(np.array([np.nan, 2, 1, 1]))
          2
        """
        return int(np.nanargmax(values if self.higher else -values))


def of_part(run: Run, part: str) -> Judged:
    """The measure of the run's task.

    Args:
      run: of training.
      part: train or test, or the mean of the workers' own models or the worst of them.

    Example:
      >>> of_part(Run("a", {}, {}, {}), "worst").title
      'worst accuracy'
    """
    # Other measures, such as perplexity, are better where they are lower.
    is_share = run.measure == "accuracy"
    unit: Unit = "percent" if is_share else "number"
    return Judged(f"{part}_{run.measure}", unit, is_share)


def judged(runs: Sequence[Run]) -> Judged:
    """The first figure that all runs have recorded: of the test set before training."""
    measures = [of_part(runs[0], part) for part in ("test", "train")]
    losses = [Judged(f"{part}_loss", "number", False) for part in ("test", "train")]
    for measure in (*measures, *losses):
        if all(np.isfinite(measure.of(run)).any() for run in runs):
            return measure
    return measures[0]


def plots_of(groups: Sequence[RunGroup]) -> dict[str, Plot]:
    """The charts for which runs have figures, as plots.

    Args:
      groups: one with one run, whose curves are all drawn; or more runs, of which each
        group is a curve.
    """
    runs = [run for group in groups for run in group.runs]
    alone, measure = len(runs) == 1, runs[0].measure
    mixed = any(mixer_title(run.config) for run in runs)
    charts = {measure: judged_by(measure), **REGISTRY}
    found = {}
    for name, chart in charts.items():
        panels = [_panel(view, groups, alone=alone) for view in chart.views]
        panels = [panel for panel in panels if panel.series]
        if panels:
            caption = chart.caption if alone else _of_many(chart, groups)
            caption += f" {chart.mixed}" if mixed and chart.mixed else ""
            # What captions say of workers, they say of those who have a model.
            title, caption = (
                text.replace("worker", model_owner(runs))
                for text in (chart.title, caption)
            )
            found[name] = Plot(title, caption, panels, chart.switch)
    return found


def _panel(view: ChartView, groups: Sequence[RunGroup], *, alone: bool) -> Panel:
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
    who = link_owner([run for group in groups for run in group.runs])
    return Panel(
        across._replace(title=across.title.replace("worker", who), log=is_log),
        view.y._replace(most=view.most(series)),
        series,
        view.references,
    )


def _of_run(run: Run, view: ChartView, curve: Curve) -> Series:
    found = points_of([run], curve.column, curve.table)
    low, high = found.low, found.high
    if curve.band:
        at = np.searchsorted(run.metrics["step"], found.step)
        worst = run.metrics[curve.band][at]
        worst = np.where(np.isfinite(worst), worst, found.value)
        low, high = np.minimum(found.value, worst), np.maximum(found.value, worst)
    name, x = curve.label or view.y.title, found.across[view.across]
    return Series(curve.column, name, curve.slot, x, found.value, low, high)


def _of_group(slot: int, group: RunGroup, view: ChartView, curve: Curve) -> Series:
    found = points_of(group.runs, curve.column, curve.table, alone=False)
    x = found.across[view.across]
    values = (x, found.value, found.low, found.high)
    return Series(group.key, group.label, slot, *values, short=group.short)


def _of_many(chart: Chart, groups: Sequence[RunGroup]) -> str:
    """The caption of a chart in which each setting is one line."""
    several = max(len(group.runs) for group in groups) > 1
    lines = "Each line is one setting"
    if chart.views[0].compared:
        lines += f": its {chart.views[0].compared} {chart.views[0].y.title}"
    if several:
        lines += ", the mean over its seeds; bands reach from the lowest to the highest"
    # What is said of the curves of one run is not true of these.
    return f"{lines}." if chart.views[0].compared else f"{lines}. {chart.caption}"

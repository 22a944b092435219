"""The figures of a report, as plots."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.units import number_text, percent_text, seconds_text
from jaxcomp.report.plot import UNITS, Axis, Panel, Plot, Reference, Series, Unit
from jaxcomp.report.run_folder import (
    Run,
    holder,
    leaver,
    settings_of,
    workers_text,
)
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.keys import SAME
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


def over_all(
    y: Axis,
    curves: Sequence[Curve],
    compared: str = "",
    most: Callable[[Sequence[Series]], float] = _no_end,
) -> list[ChartView]:
    """The same curves over epochs, seconds and bytes."""
    names = ("epoch", "seconds", "bytes")
    return [ChartView(name, y, curves, compared, most=most) for name in names]


_OF_MEAN = (
    "Each worker has a model of its own: test figures are those of the mean of the "
    "models."
)
_ERRORS = (Reference(0.0, "sending everything"), Reference(1.0, "sending nothing"))


def judged_by(name: str) -> Chart:
    """The figure of the measure of a task."""
    is_share = name == "accuracy"
    what = "Share of examples that were classified correctly: of" if is_share else "Of"
    return Chart(
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
            _twice_the_start,
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


# What may differ between the runs of a group.
_REPEATED = {"seed", *SAME}
# Keys whose values say what they are without their names, in the order of a label.
_SPEAKING = (
    *("mixer", "topology", "compressor", "memory", "exchange", "scope"),
    *("optimizer", "task", "model", "dataset", "schedule"),
)
_NOTHING = ("", "none", "null", "–")


class RunGroup(NamedTuple):
    """Runs of one config with several seeds."""

    key: str  # the same on every page of the same runs
    label: str
    runs: Sequence[Run]
    short: str = ""  # the label where there is little room; "" if none is unique


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Put runs together that differ only in the seed, in the order of their coming.

    Example:
      >>> sign, exact = {"compressor": "sign"}, {"compressor": "none"}
      >>> runs = [Run("a", sign | {"seed": s}, {}, {}) for s in (0, 1)]
      >>> [(g.label, len(g.runs)) for g in group_runs([*runs, Run("b", exact, {}, {})])]
      [('sign', 2), ('compressor none', 1)]
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_identity(run), []).append(run)
    members = list(found.values())
    keys = different_keys(members)
    labels = _unique([_label(group[0], keys) for group in members], members)
    shorts = _shorts(labels)
    return [
        RunGroup(f"g{i}", *parts)
        for i, parts in enumerate(zip(labels, members, shorts, strict=True))
    ]


def different_keys(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The dotted keys of configs in which groups differ, without the seed.

    A key counts between those who make use of it.

    Example:
      >>> configs = {"seed": 0, "workers": 4}, {"seed": 1, "workers": 8}
      >>> different_keys([[Run("a", config, {}, {})] for config in configs])
      ['workers']
    """
    found = [settings_of(group[0]) for group in groups if group[0].config]
    keys = dict.fromkeys(key for settings in found for key in settings.config)

    def differs(key: str) -> bool:
        return len({s.config.get(key) for s in found if key not in s.unused}) > 1

    return [k for k in keys if k.partition(".")[0] not in _REPEATED and differs(k)]


def _identity(run: Run) -> str:
    config, unused = settings_of(run)
    left_out = {*_REPEATED, *unused}
    kept = {k: v for k, v in config.items() if k.partition(".")[0] not in left_out}
    # Without a config nothing says what else is the same run.
    return json.dumps(kept, sort_keys=True) if kept else f"folder {run.name}"


def _label(run: Run, keys: Sequence[str]) -> str:
    settings, sweep = settings_of(run), run.environment.get("sweep") or {}
    parts = [str(label) for label in sweep.get("labels", {}).values()]
    told = sweep.get("keys", ())  # by these labels
    keys = [key for key in keys if key.partition(".")[0] not in told]
    # An exchange with a way of its own is what a compressor is to others.
    first = ["exchange"] if settings.of("compressor") == "none" else []
    speaking = [key for key in dict.fromkeys((*first, *_SPEAKING)) if key in keys]
    values = [settings.of(key) for key in speaking]
    parts += [value for value in values if value not in _NOTHING]
    others = [key for key in keys if key not in _SPEAKING]
    parts += [f"{key}={settings.of(key)}" for key in others if settings.of(key)]
    if not parts and speaking:
        return f"{speaking[0]} none"
    return ", ".join(parts)


def _shorts(labels: Sequence[str]) -> list[str]:
    """Labels without arguments, and if that tells them apart, only their first names.

    Example:
      >>> _shorts(["top_k(keep=0.1), gather", "sign, gather"])
      ['top_k', 'sign']
      >>> _shorts(["top_k(keep=0.1), workers=2", "top_k(keep=0.1), workers=4"])
      ['top_k, workers=2', 'top_k, workers=4']
    """
    bare = list(labels)
    while any("(" in text for text in bare):  # from the innermost brackets on
        inner = [re.sub(r"\([^()]*\)", "", text) for text in bare]
        if inner == bare:
            break
        bare = inner
    first = [re.split(r"[,|]", text)[0].strip() for text in bare]
    for names in (first, bare):
        if len(set(names)) == len(names):
            return names
    return [""] * len(labels)


def _unique(labels: list[str], groups: Sequence[Sequence[Run]]) -> list[str]:
    """The labels, or the names of folders where labels do not tell groups apart."""
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [group[0].name for group in groups]
    if len(set(names)) == len(names):
        return names
    return [f"{number} {name}" for number, name in enumerate(names, 1)]


Names = dict[str, Any]  # of a config, or the facts of an environment


def run_title(config: Names, facts: Names) -> str:
    """One line that says what was trained, and how.

    Args:
      config: of a training run.
      facts: its environment.

    Returns:
      The parts that are known: method, workers, and model on data.

    Example:
      >>> config = {"workers": 4, "model": "resnet20", "dataset": "cifar10"}
      >>> run_title(config, {"method": "gather(sign)"})
      'gather(sign), 4 workers, resnet20 on cifar10'
      >>> run_title(config | {"task": "my.tasks:text(length=9)"}, {})
      '4 workers, my.tasks:text(length=9)'
      >>> run_title(config, {"model": "lstm", "data": "letters"})
      '4 workers, lstm on letters'
    """
    parts = [method_names(config, facts), workers_text(config), _task(config, facts)]
    return ", ".join(filter(None, parts))


def method_names(config: Names, facts: Names) -> str:
    """How the workers exchanged gradients or models.

    Example:
      >>> config = {"mixer": "choco(gamma=0.5)", "topology": "ring", "memory": ""}
      >>> method_names(config | {"compressor": "sign"}, {})
      'choco(gamma=0.5) on ring · sign'
    """
    keys = ("compressor", "memory", "exchange")
    names = [mixer_title(config), *(_name(config, key) for key in keys)]
    return str(facts.get("method") or " · ".join(filter(None, names)))


def mixer_title(config: Names) -> str:
    """The mixer and its topology; empty where all workers share one model.

    Example:
      >>> mixer_title({"mixer": "d_psgd", "topology": "ring"})
      'd_psgd on ring'
      >>> mixer_title({"mixer": "diloco(h=16)", "topology": ""}), mixer_title({})
      ('diloco(h=16)', '')
    """
    mixer, topology = _name(config, "mixer"), _name(config, "topology")
    return f"{mixer} on {topology}" if mixer and topology else mixer


def _task(config: Names, facts: Names) -> str:
    task = _name(config, "task")
    names = [_name(facts, "model"), _name(facts, "data")]
    if not any(names):
        if task not in ("", "classification"):
            return task  # the config's model and dataset may not be those of the task
        names = [_name(config, "model"), _name(config, "dataset")]
    return " on ".join(filter(None, names))


def _name(names: Names, key: str) -> str:
    value = names.get(key)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value in (None, "", "none") else str(value)


# The most points of a curve, alone and among others.
MANY, _FEW = 120, 48


class Points(NamedTuple):
    """A curve with all that it may be drawn over; one entry for each point."""

    step: np.ndarray
    across: Table  # epoch, seconds and bytes; NaN where it was not recorded
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray  # that a point is the mean of


def points_of(
    runs: Sequence[Run], column: str, table: str = "metrics", *, alone: bool = True
) -> Points:
    """The curve of a column, over the runs of a group.

    Args:
      runs: one run, or several that differ in the seed.
      column: of the table.
      table: "metrics" or "steps".
      alone: draw every detail: where there are more rows than points, a point is the
        mean of neighbouring rows, and its band reaches from the lowest to the highest.

    Returns:
      The mean over the runs; with several runs, the band is their range.
    """
    is_alone = alone and len(runs) == 1
    curves = [
        _curve(run, column, table, MANY if is_alone else _FEW, band=is_alone)
        for run in runs
    ]
    return curves[0] if len(curves) == 1 else _joined(curves)


def smooth(values: np.ndarray, most: int) -> list[np.ndarray]:
    """Neighbouring rows in as many groups as there may be points.

    Example:
      >>> [group.tolist() for group in smooth(np.zeros(5), 2)]
      [[0, 1, 2], [3, 4]]
    """
    return np.array_split(np.arange(values.size), min(most, max(1, values.size)))


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


def _curve(run: Run, column: str, table: str, most: int, *, band: bool) -> Points:
    rows = run.steps if table == "steps" else run.metrics
    seen = np.flatnonzero(np.isfinite(rows[column])) if column in rows else []
    steps, values = (rows[name][seen] for name in ("step", column))
    groups = [group for group in smooth(steps, most) if group.size]
    step = np.array([steps[group[-1]] for group in groups])
    value, low, high = (
        np.array([reduce(values[group]) for group in groups])
        for reduce in (np.mean, np.min, np.max)
    )
    if not band:
        low = high = value
    across = {
        "epoch": _at(step, run.metrics["step"], run.metrics["epoch"]),
        "seconds": _at(step, run.metrics["step"], run.metrics["seconds"]),
        "bytes": _at(step, run.metrics["step"], run.metrics["bytes_left"]),
        "step": step,
    }
    return Points(step, across, value, low, high, np.ones(step.size))


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


def _joined(curves: Sequence[Points]) -> Points:
    """The mean of curves at each step, and their range."""
    steps = np.concatenate([curve.step for curve in curves])
    values = np.concatenate([curve.value for curve in curves])
    groups = [np.flatnonzero(steps == step) for step in np.unique(steps)]

    def over(reduce: Callable[[np.ndarray], float], parts: np.ndarray) -> np.ndarray:
        return np.array([reduce(parts[group]) for group in groups])

    across = {
        name: over(np.mean, np.concatenate([curve.across[name] for curve in curves]))
        for name in curves[0].across
    }
    return Points(
        np.unique(steps),
        across,
        over(np.mean, values),
        over(np.min, values),
        over(np.max, values),
        over(np.size, values),
    )


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

    def best(self, values: np.ndarray) -> int:
        """The place of the best number, the first of equal ones.

        Example:
          >>> Judged("test_loss", "number", False).best(np.array([np.nan, 2, 1, 1]))
          2
        """
        return int(np.nanargmax(values if self.higher else -values))


def measure_name(run: Run) -> str:
    """What the run's task is measured by; its columns are named after it.

    Example:
      >>> measure_name(Run("a", {}, {"measure": "perplexity"}, {}))
      'perplexity'
    """
    return str(run.environment.get("measure") or "accuracy")


def of_part(run: Run, part: str) -> Judged:
    """The measure of the run's task.

    Args:
      run: of training.
      part: train or test, or the mean of the workers' own models or the worst of them.

    Example:
      >>> of_part(Run("a", {}, {}, {}), "worst").title
      'worst accuracy'
    """
    name = measure_name(run)
    # Other measures, such as perplexity, are better where they are lower.
    is_share = name == "accuracy"
    return Judged(f"{part}_{name}", "percent" if is_share else "number", is_share)


def judged(runs: Sequence[Run]) -> Judged:
    """The first figure that all runs have recorded: of the test set before training."""
    measures = [of_part(runs[0], part) for part in ("test", "train")]
    losses = [Judged(f"{part}_loss", "number", False) for part in ("test", "train")]
    for measure in (*measures, *losses):
        if all(_has(run, measure.column) for run in runs):
            return measure
    return measures[0]


def _has(run: Run, column: str) -> bool:
    return column in run.metrics and bool(np.isfinite(run.metrics[column]).any())


def plots_of(groups: Sequence[RunGroup]) -> dict[str, Plot]:
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


def _registry(runs: Sequence[Run]) -> dict[str, Chart]:
    """The registry, with the figure of what the runs are measured by at its head."""
    name = measure_name(runs[0])
    if name == "accuracy":
        return REGISTRY
    return {name: judged_by(name), **REGISTRY}


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
    who = leaver([run for group in groups for run in group.runs])
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


def _of_many(figure: Chart, groups: Sequence[RunGroup]) -> str:
    """The caption of a figure in which each setting is one line."""
    several = max(len(group.runs) for group in groups) > 1
    lines = "Each line is one setting"
    if figure.views[0].compared:
        lines += f": its {figure.views[0].compared} {figure.views[0].y.title}"
    if several:
        lines += ", the mean over its seeds; bands reach from the lowest to the highest"
    # What is said of the curves of one run is not true of these.
    return f"{lines}." if figure.views[0].compared else f"{lines}. {figure.caption}"


_PARTS = {
    "data": "preparing the batch",
    "forward_backward": "forward and backward",
    "compress": "compressing",
    "communicate": "communicating",
    "decode": "decoding",
    "update": "updating the model",
}
_TIMES = {
    "step": "computing, with the exchange",
    "data": "preparing the batch",
    "wait": "waiting for the figures",
}


class Bar(NamedTuple):
    """One row."""

    label: str
    value: float
    text: str  # the value
    cells: tuple[str, ...] = ()  # further columns


class Bars(NamedTuple):
    """Rows of bars with a common scale."""

    title: str
    caption: str
    heads: tuple[str, ...]  # of label, value and further cells
    rows: Sequence[Bar]
    most: float  # the value of a full bar
    at: float = float("nan")  # a value that a line marks


def time_of_a_step(run: Run) -> Bars | None:
    """The parts of a step, from breakdown.csv or else from the medians of steps.csv."""
    rows = run.others.get("breakdown", [])
    if rows:
        times = [
            (r.get("part", ""), _number(r, "ms", "breakdown") / 1000, r) for r in rows
        ]
        total = sum(seconds for _, seconds, _ in times) or 1.0
        bars = [
            Bar(
                _PARTS.get(part, part),
                seconds,
                seconds_text(seconds),
                (percent_text(seconds / total), row.get("how") or ""),
            )
            for part, seconds, row in times
        ]
        caption = f"Parts of a step, {seconds_text(total)} in all, measured one by one."
        heads = ("part", "time", "share", "how it was measured")
        return Bars("Time of a step", caption, heads, bars, _most(bars))
    medians = {name: _median(run, f"{name}_seconds") for name in _TIMES}
    medians = {name: x for name, x in medians.items() if np.isfinite(x)}
    if not medians:
        return None
    total = sum(medians.values()) or 1.0
    bars = [
        Bar(_TIMES[name], x, seconds_text(x), (percent_text(x / total),))
        for name, x in medians.items()
    ]
    caption = (
        "Medians over the logged steps: the first step, which compiles, is not in."
    )
    heads = ("part", "time", "share")
    return Bars("Time of a step", caption, heads, bars, _most(bars))


def layers(run: Run) -> Bars | None:
    """The layers of the last epoch in layers.csv, that with the largest error first."""
    rows = run.others.get("layers", [])
    if not rows:
        return None
    epochs = [_number(row, "epoch", "layers") for row in rows]
    last = max(epochs)
    found = []
    for row, epoch in zip(rows, epochs, strict=True):
        if epoch == last:
            names = ("elements", "gradient_norm", "error")
            elements, norm, error = (_number(row, name, "layers") for name in names)
            cells = (number_text(elements), number_text(norm))
            found.append(Bar(row.get("leaf", ""), error, number_text(error), cells))
    found.sort(key=lambda bar: -np.nan_to_num(bar.value, nan=-1.0))
    caption = (
        f"Which layers lose most, in epoch {number_text(last)}: the gradient error "
        "|sent − given|² / |given|² of each. The line marks 1, sending nothing."
    )
    heads = ("layer", "gradient error", "elements", "gradient norm")
    return Bars("Layers", caption, heads, found, max(1.0, _most(found)), at=1.0)


def _median(run: Run, column: str) -> float:
    seen = run.steps.get(column, np.array([]))
    seen = seen[np.isfinite(seen)]
    return float(np.median(seen)) if seen.size else float("nan")


def _most(bars: Sequence[Bar]) -> float:
    values = [bar.value for bar in bars if np.isfinite(bar.value)]
    return max(values, default=0.0) or 1.0


def _number(row: dict[str, str], column: str, table: str) -> float:
    try:
        return float(row[column] or "nan")
    except (KeyError, ValueError):
        raise RunError(
            f"{table}.csv holds {row.get(column)!r} as {column}, expected a number"
        ) from None

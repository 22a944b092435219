"""The page of one run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.core import units
from jaxcomp.core.files import write_atomically
from jaxcomp.core.units import MISSING, number_text, percent_text, seconds_text
from jaxcomp.report import charts, grouping
from jaxcomp.report.graph import draw_round, graph_of
from jaxcomp.report.page import Card, draw_plot, render
from jaxcomp.report.run_folder import Run, alarms, provenance, read_run, run_status
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.table import METRICS, Metric


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder.

    Args:
      folder: of the run.

    Returns:
      The written file. An older report is replaced in one step: whoever opens it
      meanwhile sees the old page or the new one.

    Raises:
      RunError: the folder holds no run with a finished epoch.
    """
    path = Path(folder) / "report.html"
    write_atomically(path, render_run(read_run(folder)))
    return path


_OF_MEAN_MODEL = ("test_loss", "test_accuracy")  # where each worker has its own model
_MOST_ROUNDS = 6  # of a graph that changes with time


def render_run(run: Run) -> str:
    """The page of a run; the same run gives the same text.

    Args:
      run: from `read_run`.
    """
    title = grouping.run_title(run.config, run.environment) or run.name
    started, mixer = run.environment.get("started"), grouping.mixer_title(run.config)
    subtitle = f"run {run.name}" + (f", started {started}" if started else "")
    if mixer:
        owner = grouping.model_owner([run])
        subtitle += f"; each {owner} has a model of its own, mixed by {mixer}"
    status, (bars, problems) = run_status(run), _bars(run)
    plots = charts.plots_of(grouping.group_runs([run]))
    return render(
        "run.html",
        title=title,
        subtitle=subtitle,
        states=[*([status.text] * (status.kind == "unfinished")), *problems],
        alarms=alarms(run),
        cards=headline(run),
        plots=[draw_plot(name, plot) for name, plot in plots.items()],
        bars=bars,
        graph=_graph(run),
        rows=_epochs(run, mixed=bool(mixer)),
        provenance=provenance(run),
    )


def _graph(run: Run) -> dict[str, object] | None:
    """The graph of a gossip run, if its folder describes it."""
    graph = graph_of(run.environment.get("graph") or {}, grouping.model_owner([run]))
    if graph is None:
        return None
    count = len(graph.rounds)
    shown = range(min(count, _MOST_ROUNDS))
    first = f" Shown are the first {len(shown)} of {count} rounds."
    return {
        "title": graph.title,
        "note": f"{graph.note}.{first if count > len(shown) else ''}",
        "rounds": [(graph.rounds[i].caption, draw_round(graph, i)) for i in shown],
    }


def headline(run: Run) -> list[Card]:
    """The cards of a training run.

    Args:
      run: from `read_run`.

    Returns:
      Seven cards, and up to three more where each worker has a model of its own. A dash
      stands for what was not recorded.
    """
    measure, seconds = charts.of_part(run, "test"), run.metrics["seconds"]
    values, name = measure.of(run), measure.title
    steps, speed = run.metrics["step"][-1], _images_per_second(run)
    count = f"epochs: {len(seconds):,}, steps: {number_text(steps)}"
    sent = charts.message_bytes(run)[-1]
    sender, leaver = grouping.message_owner([run]), grouping.link_owner([run])
    left, exact = (run.metrics[name][-1] for name in ("bytes_left", "exact_bytes_left"))
    whose = " of the mean model" if grouping.mixer_title(run.config) else ""
    best = measure.best(values) if np.isfinite(values).any() else None
    with_exact = f"with exact {units.bytes_text(exact)}"
    in_mean = units.bytes_text(_divide(sent, steps))
    saved = units.times_text(units.times_fewer(exact, left))
    return [
        Card(f"final {name}{whose}", *_judged(run, measure, _last(values))),
        Card(f"best {name}{whose}", *_judged(run, measure, best)),
        *_own_cards(run),
        Card(f"message of a {sender}", in_mean, "in the mean step"),
        Card("bytes saved", saved, "exact / this run"),
        Card(f"left a {leaver} in total", units.bytes_text(left), with_exact),
        Card("training time", seconds_text(seconds[-1]), f"without compiling; {count}"),
        Card("images per second", number_text(speed), "all workers together"),
    ]


def _own_cards(run: Run) -> list[Card]:
    """Cards of the workers' own models, as far as they were measured."""
    mean, least = charts.of_part(run, "own"), charts.of_part(run, "worst")
    row = _last(mean.of(run))
    own, when = _judged(run, mean, row)
    worst, _ = _judged(run, least, row)
    owner = grouping.model_owner([run])
    distance = number_text(run.metrics["consensus_distance"][-1])
    cards = [
        Card(f"own test {run.measure}", own, f"mean of the {owner}s, {when}"),
        Card(f"worst own {run.measure}", worst, f"of one {owner}, {when}"),
        Card("consensus distance", distance, "at the end"),
    ]
    return [card for card in cards if card.value != MISSING]


def _judged(run: Run, measure: charts.Judged, row: int | None) -> tuple[str, str]:
    """A value, and the epoch in which it was measured."""
    if row is None:
        return MISSING, "not evaluated"
    epoch = number_text(run.metrics["epoch"][row])
    return measure.text(measure.of(run)[row]), f"epoch {epoch}"


def _last(values: np.ndarray) -> int | None:
    """The place of the last number that was recorded."""
    seen = np.flatnonzero(np.isfinite(values))
    return int(seen[-1]) if seen.size else None


def _images_per_second(run: Run) -> float:
    # The median leaves out the first step, which compiles.
    logged = _median(run, "images_per_second")
    if np.isfinite(logged):
        return logged
    return _divide(run.metrics["examples"][-1], run.metrics["seconds"][-1])


def _median(run: Run, column: str) -> float:
    seen = run.steps.get(column, np.array([]))
    seen = seen[np.isfinite(seen)]
    return float(np.median(seen)) if seen.size else float("nan")


def _divide(dividend: float, divisor: float) -> float:
    return float(dividend / divisor) if divisor else float("nan")


def _epochs(run: Run, mixed: bool) -> list[dict[str, str]]:
    """The table of epochs, without the columns that the run did not record."""
    columns: dict[str, Metric] = {}
    for metric in (*METRICS, *_own_metrics(run)):
        if metric.heading and not np.all(np.isnan(run.metrics[metric.name])):
            of_mean = mixed and metric.name in _OF_MEAN_MODEL
            columns[metric.heading + (" of the mean model" if of_mean else "")] = metric
    return [
        {head: m.text(run.metrics[m.name][i]) for head, m in columns.items()}
        for i in range(len(run.metrics["epoch"]))
    ]


def _own_metrics(run: Run) -> list[Metric]:
    """The columns of the measure of a task that not every run has."""
    name, heads = run.measure, {"ema": "averaged weights:"}
    text = percent_text
    if name != "accuracy":  # accuracies are columns of all runs
        heads = {"train": "train", "test": "test", "own": "own", "worst": "worst own"}
        heads, text = heads | {"ema": "averaged weights:"}, number_text
    return [Metric(f"{k}_{name}", f"{head} {name}", text) for k, head in heads.items()]


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


def _bars(run: Run) -> tuple[list[Bars], list[str]]:
    """Where the time goes and which layers lose most; and which table is damaged."""
    found: list[Bars] = []
    problems = []
    for make in (time_of_a_step, layers):
        try:
            bars = make(run)
        except RunError as error:
            problems.append(f"not shown: {error}")
            continue
        found += [bars] if bars else []
    return found, problems


def time_of_a_step(run: Run) -> Bars | None:
    """The parts of a step, from breakdown.csv or else from the medians of steps.csv."""
    rows = run.others.get("breakdown", [])
    heads: tuple[str, ...] = ("part", "time", "share")
    if rows:
        parts = [
            (
                _PARTS.get(row.get("part", ""), row.get("part", "")),
                _number(row, "ms", "breakdown") / 1000,
                (row.get("how") or "",),
            )
            for row in rows
        ]
        heads = (*heads, "how it was measured")
        caption = "Parts of a step, {} in all, measured one by one."
    else:
        medians = [
            (text, _median(run, f"{k}_seconds"), ()) for k, text in _TIMES.items()
        ]
        parts = [part for part in medians if np.isfinite(part[1])]
        caption = (
            "Medians over the logged steps: the first step, which compiles, is not in."
        )
    if not parts:
        return None
    total = sum(seconds for _, seconds, _ in parts) or 1.0
    bars = [
        Bar(label, x, seconds_text(x), (percent_text(x / total), *more))
        for label, x, more in parts
    ]
    caption = caption.format(seconds_text(total))
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

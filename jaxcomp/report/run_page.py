"""The page of one run."""

import numpy as np

from jaxcomp.core.units import (
    MISSING,
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_fewer,
    times_text,
)
from jaxcomp.report.figures import (
    Bars,
    Judged,
    group_runs,
    layers,
    measure_name,
    message_bytes,
    mixer_title,
    of_part,
    plots_of,
    run_title,
    time_of_a_step,
)
from jaxcomp.report.graph import draw_round, graph_of
from jaxcomp.report.page import Card, draw_plot, render
from jaxcomp.report.plot import Plot
from jaxcomp.report.run_folder import (
    Run,
    alarms,
    ending,
    holder,
    leaver,
    provenance,
    sender,
    started,
)
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.table import METRICS, Metric


def headline(run: Run) -> list[Card]:
    """The cards of a training run.

    Args:
      run: from `read_run`.

    Returns:
      Seven cards, and up to three more where each worker has a model of its own. A dash
      stands for what was not recorded.
    """
    measure, seconds = of_part(run, "test"), run.metrics["seconds"]
    values, name = run.metrics[measure.column], measure.title
    steps, speed = run.metrics["step"][-1], _images_per_second(run)
    count = f"epochs: {len(seconds):,}, steps: {number_text(steps)}"
    sent, who = message_bytes(run)[-1], sender([run])
    left, exact = (run.metrics[name][-1] for name in ("bytes_left", "exact_bytes_left"))
    whose = " of the mean model" if mixer_title(run.config) else ""
    best = measure.best(values) if np.isfinite(values).any() else None
    return [
        Card(f"final {name}{whose}", *_judged(run, measure, _last(values))),
        Card(f"best {name}{whose}", *_judged(run, measure, best)),
        *_own_cards(run),
        Card(
            f"message of a {who}", bytes_text(_divide(sent, steps)), "in the mean step"
        ),
        Card("bytes saved", times_text(times_fewer(exact, left)), "exact / this run"),
        Card(f"left a {leaver([run])} in total", bytes_text(left), _of_exact(exact)),
        Card("training time", seconds_text(seconds[-1]), f"without compiling; {count}"),
        Card("images per second", number_text(speed), "all workers together"),
    ]


def _own_cards(run: Run) -> list[Card]:
    """Cards of the workers' own models, as far as they were measured."""
    mean, least = of_part(run, "own"), of_part(run, "worst")
    row = _last(run.metrics[mean.column])
    own, when = _judged(run, mean, row)
    worst, _ = _judged(run, least, row)
    name = measure_name(run)
    distance = run.metrics["consensus_distance"][-1]
    apart = number_text(distance) if np.isfinite(distance) else MISSING
    cards = [
        Card(f"own test {name}", own, f"mean of the {holder([run])}s, {when}"),
        Card(f"worst own {name}", worst, f"of one {holder([run])}, {when}"),
        Card("consensus distance", apart, "at the end"),
    ]
    return [card for card in cards if card.value != MISSING]


def _of_exact(exact: float) -> str:
    known = np.isfinite(exact)
    return f"with exact {bytes_text(exact)}" if known else "not recorded by this run"


def _judged(run: Run, measure: Judged, row: int | None) -> tuple[str, str]:
    """A value, and the epoch in which it was measured."""
    if row is None:
        return MISSING, "not evaluated"
    epoch = number_text(run.metrics["epoch"][row])
    return measure.text(run.metrics[measure.column][row]), f"epoch {epoch}"


def _last(values: np.ndarray) -> int | None:
    """The place of the last number that was recorded."""
    seen = np.flatnonzero(np.isfinite(values))
    return int(seen[-1]) if seen.size else None


def _images_per_second(run: Run) -> float:
    # The median leaves out the first step, which compiles.
    logged = run.steps["images_per_second"]
    logged = logged[np.isfinite(logged)]
    if logged.size:
        return float(np.median(logged))
    return _divide(run.metrics["examples"][-1], run.metrics["seconds"][-1])


def _divide(dividend: float, divisor: float) -> float:
    return float(dividend / divisor) if divisor else float("nan")


_OF_MEAN_MODEL = ("test_loss", "test_accuracy")  # where each worker has its own model
_MOST_ROUNDS = 6  # of a graph that changes with time


def render_run(run: Run, refresh: int = 0) -> str:
    """The page of a run; the same run gives the same text.

    Args:
      run: from `read_run`.
      refresh: seconds after which the page loads itself again; 0 for never.
    """
    mixer = mixer_title(run.config)
    own = (
        f"; each {holder([run])} has a model of its own, mixed by {mixer}"
        if mixer
        else ""
    )
    end, (bars, problems) = ending(run), _bars(run)
    return render(
        "run.html",
        title=run_title(run.config, run.environment) or run.name,
        subtitle=started(run) + own,
        states=[*([end.text] if end.kind == "unfinished" else []), *problems],
        alarms=alarms(run),
        refresh=refresh,
        cards=headline(run),
        plots=[draw_plot(name, plot) for name, plot in run_plots(run).items()],
        bars=bars,
        graph=_graph(run),
        rows=_epochs(run, mixed=bool(mixer)),
        provenance=provenance(run),
    )


def run_plots(run: Run) -> dict[str, Plot]:
    """The plots of one run, by name."""
    return plots_of(group_runs([run]))


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


def _graph(run: Run) -> dict[str, object] | None:
    """The graph of a gossip run, if its folder describes it."""
    graph = graph_of(run.environment.get("graph") or {}, holder([run]))
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
    name = measure_name(run)
    parts = {"train": "train", "test": "test", "own": "own", "worst": "worst own"}
    is_accuracy = name == "accuracy"
    of_epochs = {} if is_accuracy else parts  # accuracies are columns of all runs
    text = percent_text if is_accuracy else number_text
    return [
        Metric(f"{part}_{name}", f"{head} {name}", text)
        for part, head in {**of_epochs, "ema": "averaged weights:"}.items()
    ]

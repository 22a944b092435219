"""The page of one run."""

import numpy as np

from jaxcomp.report.bars import Bars, layers, time_of_a_step
from jaxcomp.report.cards import headline
from jaxcomp.report.convex_figures import convex_plots
from jaxcomp.report.convex_tables import convex_cards, evaluation_rows
from jaxcomp.report.endings import alarms, ending
from jaxcomp.report.figure_html import draw_plot
from jaxcomp.report.figure_plots import plots_of
from jaxcomp.report.graph import draw_round, graph_of
from jaxcomp.report.groups import group_runs
from jaxcomp.report.measure import measure_name
from jaxcomp.report.page import render
from jaxcomp.report.plot import Plot
from jaxcomp.report.provenance import provenance, started
from jaxcomp.report.run_folder import Run, holds_convex
from jaxcomp.report.titles import convex_title, mixer_title, run_title
from jaxcomp.report.whose import holder
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.metrics import METRICS, Metric
from jaxcomp.runs.units import number_text, percent_text

__all__ = ["render_run", "run_plots"]

_OF_MEAN_MODEL = ("test_loss", "test_accuracy")  # where each worker has its own model
_MOST_ROUNDS = 6  # of a graph that changes with time


def render_run(run: Run, refresh: int = 0) -> str:
    """The page of a run; the same run gives the same text.

    Args:
      run: of either kind.
      refresh: seconds after which the page loads itself again; 0 for never.
    """
    convex = holds_convex(run)
    title = convex_title if convex else run_title
    mixer = mixer_title(run.config)
    own = (
        f"; each {holder([run])} has a model of its own, mixed by {mixer}"
        if mixer
        else ""
    )
    end, (bars, problems) = ending(run), _bars(run)
    return render(
        "run.html",
        title=title(run.config, run.environment) or run.name,
        subtitle=started(run) + ("" if convex else own),
        states=[*([end.text] if end.kind == "unfinished" else []), *problems],
        alarms=alarms(run),
        refresh=refresh,
        cards=convex_cards(run) if convex else headline(run),
        plots=[draw_plot(name, plot) for name, plot in run_plots(run).items()],
        bars=bars,
        graph=_graph(run),
        rows_of="Evaluations" if convex else "Epochs",
        rows=evaluation_rows(run) if convex else _epochs(run, mixed=bool(mixer)),
        provenance=provenance(run),
    )


def run_plots(run: Run) -> dict[str, Plot]:
    """The plots of one run, by name."""
    groups = group_runs([run])
    return convex_plots(groups) if holds_convex(run) else plots_of(groups)


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

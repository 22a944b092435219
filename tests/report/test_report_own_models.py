"""Reports of runs whose workers have models of their own."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.mixers.gossip import topology
from jaxcomp.mixers.gossip.topology import graph_facts, picture
from jaxcomp.report import Run, read_run
from jaxcomp.report.figures import group_runs, plots_of, run_title
from jaxcomp.report.graph import draw_round, graph_of
from jaxcomp.report.plot import Plot
from jaxcomp.report.run_page import render_run
from jaxcomp.runs.table import EPOCHS
from tests.report.test_report_page import figures, headline

MakeRun = Callable[..., Path]

GOSSIP = {
    "mixer": "choco(gamma=0.5)",
    "topology": "ring",
    "exchange": "",
    "memory": "",
    "compressor": "sign",
}
LOCAL = {"mixer": "diloco(h=8)", "topology": "", "memory": "none"}
OWN = {"consensus_distance": 0.25, "own_accuracy": 0.75, "worst_accuracy": 0.5}
EXCHANGED = {"mixer": "", "topology": "", "partition": "dealt"}


def plots(run: Run) -> dict[str, Plot]:
    return plots_of(group_runs([run]))


def table_heads(page: str) -> str:
    page = page[page.index("<h2>Epochs</h2>") :]
    return page[page.index("<thead>") : page.index("</thead>")]


def test_own_and_worst_accuracy_and_distance_are_shown(make_run: MakeRun) -> None:
    page = render_run(read_run(make_run(epochs=2, config=GOSSIP, **OWN)))
    numbers = headline(page)
    assert numbers["own test accuracy"] == ("75.00 %", "mean of the workers, epoch 2")
    assert numbers["worst own accuracy"] == ("50.00 %", "of one worker, epoch 2")
    assert numbers["consensus distance"] == ("0.25", "at the end")
    assert "final test accuracy of the mean model" in numbers
    assert "best test accuracy of the mean model" in numbers
    heads = table_heads(page)
    for head in ("own accuracy", "worst own accuracy", "consensus distance"):
        assert f">{head}<" in heads
    assert ">test accuracy of the mean model<" in heads
    assert "<td>75.00 %</td><td>50.00 %</td>" in page
    assert "consensus" in figures(page)


def test_own_accuracy_is_of_the_epoch_that_has_it(make_run: MakeRun) -> None:
    folder = make_run(epochs=3, config=GOSSIP, **OWN)
    path = folder / "metrics.csv"
    # Epoch 3 was not evaluated worker by worker; epoch 2 was the last.
    text = path.read_text()
    assert text.endswith("0.25,0.75,0.5\n")
    path.write_text(text.removesuffix("0.75,0.5\n") + ",\n")
    run = read_run(folder)
    numbers = headline(render_run(run))
    assert numbers["own test accuracy"][1] == "mean of the workers, epoch 2"
    own = plots(run)["accuracy"].panels[0].series[-1]
    np.testing.assert_array_equal(own.x, [1, 2])


@pytest.mark.parametrize(
    "columns", [{}, {"consensus_distance": "", "own_accuracy": ""}, {"unknown": 1}]
)
@pytest.mark.parametrize("config", [{}, EXCHANGED])
def test_one_common_model_reads_as_before(
    make_run: MakeRun, config: dict[str, str], columns: dict[str, object]
) -> None:
    run = read_run(make_run(epochs=2, config=config, **columns))
    page = render_run(run)
    assert len(headline(page)) == 7
    assert figures(page) == ["accuracy", "loss", "compression", "time"]
    for words in ("mean of the models", "own models", "of its own", "onsensus"):
        assert words not in page.partition("<h2>Config</h2>")[0]
    title = "top_k(keep=0.01) · error_feedback · gather, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page


def test_an_old_table_without_the_columns_is_read(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=1))
    assert tuple(run.metrics) == (*EPOCHS.columns, "ema_accuracy")


def test_a_band_reaches_from_the_mean_of_the_workers_to_the_worst(
    make_run: MakeRun,
) -> None:
    plot = plots(read_run(make_run(epochs=2, config=GOSSIP, **OWN)))["accuracy"]
    train, test, own = plot.panels[0].series
    assert [one.label for one in (train, test, own)] == ["train", "test", "own models"]
    np.testing.assert_array_equal(
        [own.low, own.y, own.high], [[0.5] * 2, [0.75] * 2] + [[0.75] * 2]
    )
    assert "those of the mean of the models" in plot.caption
    alone = plots(read_run(make_run(1, GOSSIP, "b", **OWN | {"worst_accuracy": ""})))
    own = alone["accuracy"].panels[0].series[-1]
    assert own.low.tolist() == own.high.tolist() == [0.75]


def test_consensus_plot_has_the_distances(make_run: MakeRun) -> None:
    plot = plots(read_run(make_run(epochs=3, config=GOSSIP, **OWN)))["consensus"]
    [series] = plot.panels[0].series
    np.testing.assert_array_equal(series.y, [0.25] * 3)
    # Over epochs, over seconds and over bytes.
    assert [panel.series[0].x.tolist() for panel in plot.panels] == [
        [1, 2, 3],
        [12.5, 25, 37.5],
        [6.54e6, 13.08e6, 19.62e6],
    ]


def test_pages_name_mixer_and_topology(make_run: MakeRun) -> None:
    page = render_run(read_run(make_run(epochs=1, config=GOSSIP, **OWN)))
    title = "choco(gamma=0.5) on ring · sign, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page
    assert "mixed by choco(gamma=0.5) on ring</p>" in page


def test_a_local_method_names_its_exchange() -> None:
    config = LOCAL | {"compressor": "sign", "exchange": "gather"}
    assert run_title(config, {}) == "diloco(h=8) · sign · gather"
    assert run_title(config, {"method": "as recorded"}) == "as recorded"


def test_the_graph_is_drawn_from_what_the_run_recorded(make_run: MakeRun) -> None:
    folder = make_run(epochs=1, config=GOSSIP, **OWN)
    facts = json.loads((folder / "environment.json").read_text())
    facts |= graph_facts("exponential(one_peer=True)", 4)
    (folder / "environment.json").write_text(json.dumps(facts))
    page = render_run(read_run(folder))
    assert page.count('<svg class="graph"') == 2
    assert "4 workers, degree 1, gap 1, weight 0.5." in page
    # It is drawn, and not also written out.
    assert "spectral_gap" not in page
    facts["graph"]["rounds"] = "torn"
    (folder / "environment.json").write_text(json.dumps(facts))
    assert '<svg class="graph"' not in render_run(read_run(folder))


@pytest.mark.parametrize(
    ("spec", "lines"),
    [("ring", 8), ("star", 7), ("complete", 28), ("torus(rows=2)", 14)],
)
def test_a_drawing_has_every_worker_and_every_edge(spec: str, lines: int) -> None:
    shown = graph_of(picture(topology(spec, 8), spec))
    assert shown
    svg = draw_round(shown, 0)
    assert svg.count("<circle") == 8
    # Of this torus 10 lines stay inside; one of each row is a stub at both ends.
    assert svg.count("<path") == lines


def test_an_edge_without_its_reverse_is_an_arrow() -> None:
    spec = "edges(list=[[0, 1], [1, 2], [2, 0]], directed=True)"
    shown = graph_of(picture(topology(spec, 3), spec))
    assert shown
    assert draw_round(shown, 0).count('class="head"') == 3


def test_a_graph_of_thousands_of_edges_is_not_recorded() -> None:
    assert graph_facts("complete", 8)["graph"]["degree"] == 7
    assert graph_facts("complete", 64) == {}

"""What the charts of a run show, and how plots and graphs are drawn."""

import re

import numpy as np
import pytest

from jaxcomp.mixers.gossip import topology
from jaxcomp.mixers.gossip.topology import graph_facts, picture
from jaxcomp.report import Run, read_run
from jaxcomp.report.charts import MANY, plots_of, points_of
from jaxcomp.report.graph import draw_round, graph_of
from jaxcomp.report.grouping import group_runs
from jaxcomp.report.plot import (
    Axis,
    Panel,
    Plot,
    Reference,
    Scale,
    Series,
    drawable,
    scales_of,
    ticks,
)
from jaxcomp.report.svg import NARROW, Box, beside, draw_svg, spread_labels
from tests.report.test_report_page import GOSSIP, OWN


def plots(run: Run) -> dict[str, Plot]:
    return plots_of(group_runs([run]))


def series(y: list[float], name: str = "a", slot: int = 0) -> Series:
    values = np.array(y, float)
    x = np.arange(1.0, values.size + 1)
    return Series(name, name, slot, x, values, values, values)


def panel(*curves: Series, log: bool = False, most: float = np.inf) -> Panel:
    y = Axis("loss", "number", log, most)
    return Panel(Axis("epoch", "count"), y, curves, (Reference(1.0, "nothing"),))


def test_many_rows_become_means_with_a_band(make_run):
    run = read_run(make_run(epochs=100))
    found = points_of([run], "loss", "steps")
    assert found.value.size == MANY
    assert found.step[-1] == 10_000
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    among_others = points_of([run], "loss", "steps", alone=False)
    assert among_others.value.size < MANY
    np.testing.assert_array_equal(among_others.low, among_others.value)


def test_curves_lie_over_epochs_seconds_and_bytes(make_run):
    run = read_run(make_run(epochs=2))
    found = points_of([run], "test_loss")
    assert found.across["epoch"].tolist() == [1, 2]
    assert found.across["seconds"].tolist() == [12.5, 25]
    assert found.across["bytes"].tolist() == [6_540_000, 13_080_000]
    logged = points_of([run], "loss", "steps").across
    assert logged["epoch"][:2].tolist() == [0.1, 0.2]
    # Rows after the last epoch go on as in it.
    stopped = run._replace(metrics={k: v[:1] for k, v in run.metrics.items()})
    assert points_of([stopped], "loss", "steps").across["epoch"][-1] == 2


def test_sending_nothing_is_a_line_at_one(make_run):
    plot = plots(read_run(make_run(epochs=2)))["compression"]
    [error] = [p for p in plot.panels if p.y.title == "gradient error"]
    assert Reference(1.0, "sending nothing") in error.references
    assert "|sent − given|² / |given|²" in plot.caption
    assert "sending nothing</text>" in draw_svg(error)
    low, high = scales_of(error)[1][:2]
    assert low <= 0 < 1 < high


def test_a_band_reaches_from_the_mean_of_the_workers_to_the_worst(make_run):
    # Epoch 3 was not evaluated worker by worker, and of epoch 1 the worst is not known.
    own = {"own_accuracy": [0.75, 0.75, ""], "worst_accuracy": ["", 0.5, ""]}
    found = plots(read_run(make_run(3, GOSSIP, **OWN | own)))
    train, test, own = found["accuracy"].panels[0].series
    assert [one.label for one in (train, test, own)] == ["train", "test", "own models"]
    assert own.x.tolist() == [1, 2]
    assert (own.low.tolist(), own.y.tolist()) == ([0.75, 0.5], [0.75] * 2)
    assert "those of the mean of the models" in found["accuracy"].caption
    panels = found["consensus"].panels
    assert [panel.series[0].y.tolist() for panel in panels] == [[0.25] * 3] * 3
    # Over epochs, over seconds and over bytes.
    across = [panel.series[0].x.tolist() for panel in panels]
    assert across == [[1, 2, 3], [12.5, 25, 37.5], [6.54e6, 13.08e6, 19.62e6]]


def test_suboptimality_has_a_logarithmic_axis(make_run):
    facts = {"measure": "suboptimality"}
    columns = {"test_suboptimality": 1e-3, "train_suboptimality": 0}
    folder = make_run(2, facts=facts, steps={"suboptimality": 0}, **columns)
    panel = plots(read_run(folder))["suboptimality"].panels[0]
    # What a logarithm cannot show is left out.
    assert [one.label for one in drawable(panel)] == ["test"]
    assert ">0.001<" in draw_svg(panel)


def test_no_label_is_cut_off():
    """Large numbers take as much room as they need, left and right."""
    large = series([1e-6, 123456.0, 987654.0], "a long label")
    svg = draw_svg(panel(large, series([3.0, 4.0, 5.0], "b", 1)))
    texts = re.findall(
        r'<text class="(.*?)"[^>]*? x="(.*?)" y=".*?" text-anchor="(.*?)">(.*?)<', svg
    )
    assert len(texts) > 6
    for kind, x, anchor, text in texts:
        room = 6.2 * len(text)
        left = float(x) - {"start": 0.0, "middle": room / 2, "end": room}[anchor]
        assert left >= -1, (kind, text)
        assert left + room <= NARROW.width + 1, (kind, text)


@pytest.mark.parametrize(
    "y", [[0.5], [0.5] * 3, [0.0] * 2, [-1.0, 1.0], [1e-30, 1e30], [np.nan, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_any_values_can_be_drawn(y, log):
    drawn = draw_svg(panel(series(y), log=log))
    assert drawn.startswith("<svg")
    assert not re.search(r"\b(nan|inf)\b", drawn)


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (-3, 17), (0.001, 0.0042), (1e6, 9e6), (5, 5.1)):
        for unit in ("number", "bytes", "seconds", "percent"):
            found = ticks(Axis("x", unit), Scale(low, high), 6)
            assert 2 <= len(found) <= 7
            assert all(low <= value <= high for value in found)
    for low, high in ((1e-8, 1), (0.5, 3), (2, 2.1)):
        found = ticks(Axis("x", "number", log=True), Scale(low, high, log=True), 6)
        assert 1 <= len(found) <= 6
        assert all(low <= value <= high for value in found)


def test_labels_do_not_overlap():
    wanted = np.random.default_rng(0).uniform(0, 100, 6)
    found = np.sort(spread_labels(wanted.tolist(), 15, 0, 100))
    assert (np.diff(found) >= 15 - 1e-9).all()
    assert 0 <= found[0] <= found[-1] <= 100
    area, box = Box(0, 0, 200, 100), Box(0, 0, 60, 15)
    taken: list[Box] = []
    for at in ((190.0, 50.0), (185.0, 52.0), (10.0, 5.0), (12.0, 8.0)):
        place = beside(at, box, taken, area)
        assert not any(place.meets(other) for other in taken)
        taken.append(place)


@pytest.mark.parametrize(
    ("spec", "workers", "paths"),
    [
        ("ring", 8, 8),
        ("star", 8, 7),
        ("complete", 8, 28),
        ("torus(rows=2)", 8, 14),  # 10 lines inside, and a stub at both ends of others
        # Lines without their reverse, each with the head of an arrow.
        ("edges(list=[[0, 1], [1, 2], [2, 0]], directed=True)", 3, 6),
    ],
)
def test_a_drawing_has_every_worker_and_every_edge(spec, workers, paths):
    shown = graph_of(picture(topology(spec, workers), spec))
    assert shown
    svg = draw_round(shown, 0)
    assert svg.count("<circle") == workers
    assert svg.count("<path") == paths
    assert svg.count('class="head"') == (3 if "directed" in spec else 0)


def test_a_graph_of_thousands_of_edges_is_not_recorded():
    assert graph_facts("complete", 8)["graph"]["degree"] == 7
    assert graph_facts("complete", 64) == {}

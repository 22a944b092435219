"""Reports of runs whose workers have models of their own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomp.report import epoch_plots, read_run
from jaxcomp.report.html import render_page
from jaxcomp.report.plots import plots_of
from jaxcomp.report.titles import run_title
from jaxcomp.runs.metrics import EPOCHS
from tests.report.test_report_page import Page, headline

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


def table_heads(page: str) -> str:
    return page[page.index("<thead>") : page.index("</thead>")]


def test_own_and_worst_accuracy_and_distance_are_shown(make_run: MakeRun) -> None:
    page = render_page(read_run(make_run(epochs=2, config=GOSSIP, **OWN)))
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
    assert Page(page).tags["svg"] == 7


def test_own_accuracy_is_of_the_epoch_that_has_it(make_run: MakeRun) -> None:
    folder = make_run(epochs=3, config=GOSSIP, **OWN)
    path = folder / "metrics.csv"
    # Epoch 3 was not evaluated worker by worker; epoch 2 was the last.
    text = path.read_text()
    assert text.endswith("0.25,0.75,0.5\n")
    path.write_text(text.removesuffix("0.75,0.5\n") + ",\n")
    numbers = headline(render_page(read_run(folder)))
    assert numbers["own test accuracy"][1] == "mean of the workers, epoch 2"


@pytest.mark.parametrize(
    "columns", [{}, {"consensus_distance": "", "own_accuracy": ""}, {"unknown": 1}]
)
@pytest.mark.parametrize("config", [{}, EXCHANGED])
def test_one_common_model_reads_as_before(
    make_run: MakeRun, config: dict[str, str], columns: dict[str, object]
) -> None:
    run = read_run(make_run(epochs=2, config=config, **columns))
    assert "consensus" not in plots_of(run)
    page = render_page(run)
    assert len(headline(page)) == 7
    assert Page(page).tags["svg"] == 6
    for words in ("mean model", "own accuracy", "of its own", "onsensus"):
        assert words not in page.partition("<h2>Config</h2>")[0]
    title = "top_k(keep=0.01) · error_feedback · gather, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page


def test_an_old_table_without_the_columns_is_read(make_run: MakeRun) -> None:
    run = read_run(make_run(epochs=1))
    assert tuple(run.metrics) == EPOCHS.columns
    assert len(plots_of(run)) == 6


def test_consensus_plot_has_the_distances_and_names_the_mixer(
    make_run: MakeRun,
) -> None:
    run = read_run(make_run(epochs=3, config=GOSSIP, **OWN))
    axes = epoch_plots.consensus(run).axes[0]
    title = axes.get_title(loc="left")
    assert title == "Consensus distance, choco(gamma=0.5) on ring"
    np.testing.assert_array_equal(np.asarray(axes.lines[0].get_ydata()), [0.25] * 3)


def test_a_long_mixer_does_not_outgrow_the_title(make_run: MakeRun) -> None:
    long = GOSSIP | {"topology": "exponential_one_peer(offset=3, seed=1)"}
    run = read_run(make_run(epochs=1, config=long, **OWN))
    title = epoch_plots.consensus(run).axes[0].get_title(loc="left")
    assert title == "Consensus distance"


def test_accuracy_plot_has_a_curve_for_each_that_was_measured(
    make_run: MakeRun,
) -> None:
    run = read_run(make_run(epochs=2, config=GOSSIP, **OWN | {"worst_accuracy": ""}))
    axes = epoch_plots.accuracy(run).axes[0]
    names = [text.get_text().split()[0] for text in axes.texts]
    assert names == ["train", "test", "own"]
    assert axes.get_title(loc="left") == "Accuracy (test: of the mean model)"


def test_pages_name_mixer_and_topology(make_run: MakeRun) -> None:
    page = render_page(read_run(make_run(epochs=1, config=GOSSIP, **OWN)))
    title = "choco(gamma=0.5) on ring · sign, 4 workers, resnet20 on cifar10"
    assert f"<h1>{title}</h1>" in page
    assert "mixed by choco(gamma=0.5) on ring</p>" in page
    assert "Test accuracy of the mean model over bytes sent" in page


def test_a_local_method_names_its_exchange() -> None:
    config = LOCAL | {"compressor": "sign", "exchange": "gather"}
    assert run_title(config, {}) == "diloco(h=8) · sign · gather"
    assert run_title(config, {"method": "as recorded"}) == "as recorded"

"""What runs are called, by what they make use of, and who sends and has models."""

import re
from typing import Any

import pytest

import jaxcomp
from jaxcomp.report import Run, read_run, write_comparison
from jaxcomp.report.charts import plots_of
from jaxcomp.report.grouping import group_runs, settings_of
from jaxcomp.report.run_page import headline, render_run
from tests.every_method import ARGUMENTS, COMPRESSORS, EXCHANGES

USUAL = {
    **{"exchange": "gather", "compressor": "top_k(keep=0.01)", "scope": "whole_tree"},
    **{"memory": "error_feedback", "policy": [], "workers": 4},
}
SHARED = {"workers_per_device": 2}
NODES = {
    **{"mixer": "choco(gamma=0.5)", "topology": "ring", "exchange": "", "memory": ""},
    **{"workers": 4, "devices_per_node": 2},
}
OWN = {"own_accuracy": 0.75, "worst_accuracy": 0.5, "consensus_distance": 0.25}


def labels(*runs: Run) -> list[str]:
    return [group.label for group in group_runs(runs)]


def run(method: str = "", sweep: Any = None, **config: Any) -> Run:
    facts = {"method": method} | ({"sweep": sweep} if sweep else {})
    return Run(f"{config}", USUAL | config, facts, {})


def test_a_run_that_does_not_compress_is_called_exact():
    compressed = run("error_feedback: gather(top_k(keep=0.01))")
    exact = run("error_feedback: exact", exchange="exact")
    assert labels(compressed, exact) == ["top_k(keep=0.01), gather", "exact"]
    others = {"compressor": "sign", "memory": "none", "scope": "per_leaf"}
    assert labels(run(**others), run(exchange="exact")) == ["sign, gather", "exact"]


def test_a_momentum_of_a_memory_is_used_without_compression():
    exact = {"exchange": "exact"}
    found = labels(run(**exact, memory="local_momentum"), run(**exact, memory="none"))
    assert found == ["local_momentum", "memory none"]


def test_exact_runs_that_differ_in_a_compressor_are_repetitions():
    [group] = group_runs([run(exchange="exact", compressor=c) for c in ("sign", "no")])
    assert len(group.runs) == 2


def test_an_exchange_with_a_way_of_its_own_is_called_by_that():
    spec, plain = "power_sgd(rank=2)", "top_k(keep=0.01), gather"
    kept = run(f"error_feedback: {spec}", exchange=spec)
    assert labels(kept, run()) == [spec, plain]
    lost = run(spec, exchange=spec, memory="none")
    assert labels(kept, run(), lost) == [
        f"{spec}, error_feedback",
        "top_k(keep=0.01), error_feedback, gather",
        spec,
    ]
    assert group_runs([kept, run(), lost])[0].short == "power_sgd, error_feedback"


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_name_of_a_method_says_whether_it_uses_its_compressor(name):
    spec, compressor = name + ARGUMENTS.get(name, ""), COMPRESSORS.get(name, "sign")
    own = () if compressor == "none" else (compressor,)
    method = jaxcomp.make_exchange(spec, *own, memory="none").name
    asked = own[0] if own else "top_k(keep=0.5)"
    found = settings_of(run(method, exchange=spec, compressor=asked))
    assert found.of("compressor") == compressor


def test_what_a_sweep_calls_a_run_wins():
    def told(label: str) -> dict[str, Any]:
        keys = ["compressor", "exchange", "memory"]
        return {"labels": {"method": label}, "keys": keys}

    runs = [
        run(sweep=told("top-k of 1 %"), workers=2),
        run(sweep=told("signs"), workers=4, compressor="sign", memory="none"),
        run(exchange="exact"),  # of no sweep
    ]
    wanted = ["top-k of 1 %, workers=2", "signs, workers=4", "exact, workers=4"]
    assert labels(*runs) == wanted


@pytest.mark.parametrize(
    ("config", "who", "workers"),
    [
        ({}, "worker", "4 workers"),
        (SHARED, "device", "4 workers on 2 devices"),
        (NODES, "device", "2 nodes of 2 devices"),
    ],
)
def test_bytes_are_those_of_who_sends(make_run, config, who, workers):
    run = read_run(make_run(1, config))
    names = [card.name for card in headline(run)]
    assert {f"message of a {who}", f"left a {who} in total"} <= {*names}
    [*_, panel] = plots_of(group_runs([run]))["loss"].panels
    assert panel.x.title == f"bytes that have left one {who}"
    assert f", {workers}, resnet20 on cifar10</h1>" in render_run(run)


def test_a_node_of_several_devices_has_one_model(make_run):
    page = render_run(read_run(make_run(1, NODES, **OWN)))
    assert "each node has a model of its own" in page
    assert "mean of the nodes, epoch 1" in page
    assert "of one node, epoch 1" in page
    assert "Agreement of the nodes" in page
    assert "each worker" not in page.lower()
    assert "workers&#39; models" not in page


def test_a_comparison_says_where_devices_stand_beside_workers(make_run, tmp_path):
    alone, shared = make_run(1, {}, "alone"), make_run(1, SHARED, "shared")
    facts = {"leaver": "host of 2 workers"}

    def heads(*folders):
        page = write_comparison(folders, tmp_path / "page.html").read_text()
        return " ".join(re.findall(r"left a ([\w ]+)<", page))

    assert heads(alone) == "worker"
    assert heads(shared) == "device"
    assert heads(alone, shared) == "device or worker"
    assert heads(make_run(1, {}, "told", facts)) == "host of 2 workers"

"""Pages say whose bytes and models they show: of workers, devices or nodes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcomp.report import read_run, write_comparison
from jaxcomp.report.figures import group_runs, plots_of
from jaxcomp.report.run_page import headline, render_run

MakeRun = Callable[..., Path]
SHARED = {"workers_per_device": 2}
HOST = "host of 2 workers"
NODES = {
    **{"mixer": "choco(gamma=0.5)", "topology": "ring", "exchange": "", "memory": ""},
    **{"workers": 4, "devices_per_node": 2},
}
OWN = {"own_accuracy": 0.75, "worst_accuracy": 0.5, "consensus_distance": 0.25}


@pytest.mark.parametrize(
    ("config", "who", "workers"),
    [
        ({}, "worker", "4 workers"),
        (SHARED, "device", "4 workers on 2 devices"),
        (NODES, "device", "2 nodes of 2 devices"),
    ],
)
def test_bytes_are_those_of_who_sends(
    make_run: MakeRun, config: dict[str, int], who: str, workers: str
) -> None:
    run = read_run(make_run(1, config))
    names = [card.name for card in headline(run)]
    assert {f"message of a {who}", f"left a {who} in total"} <= {*names}
    [*_, panel] = plots_of(group_runs([run]))["loss"].panels
    assert panel.x.title == f"bytes that have left one {who}"
    assert f", {workers}, resnet20 on cifar10</h1>" in render_run(run)


def test_a_node_of_several_devices_has_one_model(make_run: MakeRun) -> None:
    run = read_run(make_run(1, NODES, **OWN))
    page = render_run(run)
    assert "each node has a model of its own" in page
    assert "mean of the nodes, epoch 1" in page
    assert "of one node, epoch 1" in page
    assert "Agreement of the nodes" in page
    assert "each worker" not in page.lower()
    assert "workers&#39; models" not in page


def test_a_comparison_says_where_devices_stand_beside_workers(
    make_run: MakeRun, tmp_path: Path
) -> None:
    alone, shared = make_run(1, {}, "alone"), make_run(1, SHARED, "shared")

    def heads(*folders: Path) -> str:
        page = write_comparison(folders, tmp_path / "page.html").read_text()
        return " ".join(re.findall(r"left a ([\w ]+)<", page))

    assert heads(alone) == "worker"
    assert heads(shared) == "device"
    assert heads(alone, shared) == "device or worker"
    facts = json.loads((alone / "environment.json").read_text()) | {"leaver": HOST}
    (alone / "environment.json").write_text(json.dumps(facts))
    assert heads(alone) == HOST

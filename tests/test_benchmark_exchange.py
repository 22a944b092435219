"""The benchmark of exchanges runs, on a few small tensors, and writes what it says."""

import csv

import pytest

from benchmarks import exchange, peers_ddp, trees
from benchmarks.exchange import Row
from jaxcomp import exchanges, make_exchange


def test_a_scaled_tree_has_the_tensors_of_the_whole_one():
    assert trees.elements(trees.resnet50()) == 25_557_032
    assert trees.flat() == {"w": (25_557_032,)}
    small = trees.named_tree("resnet50", 0.1)
    assert small.keys() == trees.resnet50().keys()
    assert 200_000 < trees.elements(small) < 300_000
    with pytest.raises(ValueError, match="unknown tree 'vgg'.*flat, gpt2, resnet50"):
        trees.named_tree("vgg")


def test_cases_cover_every_exchange():
    covered = {case.exchange.split("(")[0] for case in exchange.CASES}
    assert covered == set(exchanges.REGISTRY)
    titles = [case.title for case in exchange.CASES]
    assert len(set(titles)) == len(titles)
    for case in exchange.CASES:
        assert make_exchange(case.exchange, case.compressor, case.memory, case.scope)
        assert set(case.peers) <= set(peers_ddp.HOOKS)


@pytest.mark.slow
def test_it_measures_and_writes(tmp_path, capsys, monkeypatch):
    tensors = {"kernel": (3, 3, 40, 60), "matrix": (200, 90), "bias": (60,)}
    size = trees.elements(tensors)
    of = {"flat": {"w": (size,)}, "resnet50": tensors}
    monkeypatch.setattr(trees, "named_tree", lambda name, scale: of[name])
    monkeypatch.setattr(exchange, "COUNTS", (2, 16))
    few = ["exact", "gather(top_k(keep=0.001)), flat", "power_sgd(rank=2)"]
    sizes = ["--scale=0.2", "--repeats=1", "--no-peers"]
    rows = exchange.main([f"--out={tmp_path}", *sizes, "--cases", *few])
    by_method = {row.method: row for row in rows}
    assert list(by_method) == few
    assert {row.elements for row in rows} == {size}
    assert {(row.who, row.workers) for row in rows} == {("jaxcomp", 4)}
    assert all(min(row.ms, row.to_exact, row.to_read) > 0 for row in rows)
    assert all(row.compile_s and row.memory and row.memory > 1 for row in rows)
    exact, power = by_method["exact"], by_method["power_sgd(rank=2)"]
    assert (exact.to_exact, exact.sent, exact.collectives) == (1, 4 * size, 1)
    assert exact.by_kind == f"all-reduce={4 * size}"
    assert (power.collectives, power.by_kind.split("=")[0]) == (2, "all-reduce")
    flat = by_method["gather(top_k(keep=0.001)), flat"]
    assert flat.tree == "flat"
    assert flat.by_kind.startswith("all-gather=")

    with open(tmp_path / "exchange.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["method"] for row in written] == list(by_method)
    assert tuple(written[0]) == Row._fields
    assert (tmp_path / "exchange.png").stat().st_size > 10_000
    assert "one read pass" in capsys.readouterr().out


def test_an_unknown_case_is_an_error():
    with pytest.raises(SystemExit, match="'gatherer'.*\n  exact\n"):
        exchange.main(["--cases", "gatherer"])

"""The benchmark of exchanges runs, on a few small tensors, and writes what it says."""

import csv

import pytest

from benchmarks import exchange, peers_ddp, trees
from benchmarks.exchange import Decoding, Row, floors
from jaxcomp import exchanges, make_exchange


def test_resnet50_has_its_tensors():
    shapes = trees.resnet50()
    assert len(shapes) == 161
    assert trees.elements(shapes) == 25_557_032
    assert sum(len(shape) == 4 for shape in shapes.values()) == 53
    assert shapes["stage3/block0/2/conv"] == (3, 3, 512, 512)
    assert shapes["stage1/block0/shortcut/conv"] == (1, 1, 256, 512)
    assert shapes["head/kernel"] == (2048, 1000)
    assert trees.flat() == {"w": (25_557_032,)}


def test_a_scaled_tree_has_the_same_tensors():
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
    monkeypatch.setattr(trees, "_STAGES", ((64, 1),))  # 17 tensors
    monkeypatch.setattr(exchange, "COUNTS", (2, 16))
    few = ["exact", "gather(top_k(keep=0.001)), flat", "power_sgd(rank=2)"]
    sizes = ["--scale=0.2", "--repeats=1", "--no-peers"]
    rows = exchange.main([f"--out={tmp_path}", *sizes, "--cases", *few])
    by_method = {row.method: row for row in rows}
    assert list(by_method) == few
    size = trees.elements(trees.resnet50(0.2))
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
    shown = capsys.readouterr().out
    assert "one read pass" in shown
    assert "16 payloads" in shown
    assert "decoding one more payload (resnet50)" in shown


def test_an_unknown_case_is_an_error():
    with pytest.raises(SystemExit, match="'gatherer'.*\n  exact\n"):
        exchange.main(["--cases", "gatherer"])


def row(method: str, ms: float, who: str = "jaxcomp") -> Row:
    return Row(method, who, "resnet50", 10, 4, ms, 1, 1, None, 1, 1, 4, "", 1)


def test_floors_say_what_is_missed():
    rows = [
        row("gather(top_k(keep=0.001))", 13.0),
        row("gather(top_k(keep=0.001)), flat", 10.0),
        row("power_sgd(rank=2)", 10.0),
        row("DDP: PowerSGD(rank=2)", 40.0, "PyTorch"),
        row("DDP: PowerSGD(rank=2), batched", 29.0, "PyTorch"),
        row("DDP: PowerSGD(rank=4)", 1.0, "PyTorch"),
    ]
    fit = Decoding("flat", (2, 4), (3.0, 5.0), dense_ms=10.0, a=1.0, b=1.0)
    scope, decoded, power = floors(rows, [fit])
    assert (scope.value, scope.met) == (1.3, True)
    assert (decoded.value, decoded.met) == (0.1, True)
    assert (power.value, power.met) == (2.9, False), "the faster of theirs counts"
    assert str(power).endswith("2.9x, at least 3x: MISSED")
    assert str(scope).endswith("1.3x, at most 1.3x: met")
    assert not floors([], [fit._replace(b=1.1)])[0].met
    assert floors([rows[0]], []) == [], "what was not measured"


def test_an_interpreter_that_is_none_is_told_in_one_line(tmp_path):
    """It is a slip of the pen; one without torch is a benchmark without peers."""
    said = "cannot be started: No such file or directory"
    with pytest.raises(SystemExit, match=f"^--python={tmp_path}/nowhere {said}$"):
        exchange.main([f"--python={tmp_path}/nowhere"])
    (tmp_path / "text").write_text("no program")
    with pytest.raises(SystemExit, match="text cannot be started: Permission denied"):
        peers_ddp.has_torch(str(tmp_path / "text"))


def test_a_peer_that_ends_says_why(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    broken.chmod(0o755)
    assert not peers_ddp.has_torch(str(broken))
    with pytest.raises(RuntimeError, match="all-reduce ended:\nno torch here"):
        peers_ddp.start("all-reduce", [(2, 3)], 2, str(broken))
    with pytest.raises(ValueError, match="unknown hook 'fp8'; valid: all-reduce"):
        peers_ddp.start("fp8", [(2, 3)], 2, str(broken))

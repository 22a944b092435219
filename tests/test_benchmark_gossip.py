"""The benchmark of gossip runs, on a few small tensors, and writes what it says."""

import csv

import numpy as np
import pytest

from benchmarks import gossip, trees
from jaxcomp.mixers import gossip as algorithms
from jaxcomp.mixers import local


def test_cases_cover_every_method_that_is_no_simulation():
    covered = {case.mixer for case in gossip.CASES}
    simulated = {"delayed_sgd", "stale_hypercube"}
    assert covered == {*algorithms.REGISTRY, *local.REGISTRY} - simulated


@pytest.mark.slow
def test_it_measures_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trees, "_STAGES", ((64, 1),))  # 17 tensors
    few = ["d_psgd", "choco, sign", "sparse_loco"]
    sizes = ["--scale=0.2", "--repeats=1", "--no-peers", "--workers=3"]
    rows = gossip.main([f"--out={tmp_path}", *sizes, "--cases", *few])
    plain, choco, local_rounds = rows
    assert [row.messages for row in rows] == [2, 2, 1]
    assert plain.to_d_psgd == 1
    assert plain.sent == 2 * 4 * plain.elements
    assert choco.sent < plain.sent / 28
    assert local_rounds.sent < plain.sent / 50
    assert all(min(row.ms, row.to_read, row.memory) > 0 for row in rows)
    with open(tmp_path / "gossip.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["method"] for row in written] == [row.method for row in rows]
    assert "one read pass" in capsys.readouterr().out


def test_an_unknown_case_is_refused():
    with pytest.raises(SystemExit, match=r"no title begins with one of \['chocco'\]"):
        gossip.main(["--cases", "chocco"])


def test_the_peer_s_round_is_choco():
    """The peer mixes as the reference does; without loss it is D-PSGD, to rounding."""
    torch = pytest.importorskip("torch", reason="torch is not installed: make oracles")
    import benchmarks.peers_torch as peers
    from tests.references import gossip as references

    ring = algorithms.topology("ring", 4).rounds[0]
    updates = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    codecs = [peers.Peer(lambda x: x.clone(), lambda payload: payload)]
    rows = [[torch.from_numpy(row)] for row in updates]
    x, public, total = ([[torch.zeros(6)] for _ in rows] for _ in range(3))
    for _ in range(5):
        gossip._choco_round(codecs, ring, rows, x, public, total)
    start = np.zeros((4, 6))
    *_, last = references.choco(
        ring.matrix, start, lambda x: updates, lambda t, v: v, 5, gossip.GAMMA
    )
    np.testing.assert_allclose(np.stack([r[0] for r in x]), last, atol=1e-5)

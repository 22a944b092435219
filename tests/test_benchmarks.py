"""The benchmarks run, on little data and without peers, and write what they say."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    compress,
    error,
    gossip,
    gradients,
    simulated_workers,
    slow_training,
    trees,
)
from benchmarks.slow_training import Row as SlowRow
from jaxcomp import compressors, make_compressor
from jaxcomp.mixers import gossip as algorithms
from jaxcomp.mixers import local
from tests.training.small import built, small_config


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as source:
        return list(csv.DictReader(source))


def test_compress_measures_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compress, "torch_peers", lambda: None)
    out = f"--out={tmp_path}"
    rows = compress.main(
        [out, "--size=3000", "--repeats=2", "--methods", "sign", "top_k(keep=0.01)"]
    )
    assert [(row.method, row.data) for row in rows] == [
        ("sign", "gaussian"),
        ("sign", "heavy"),
        ("top_k(keep=0.01)", "gaussian"),
        ("top_k(keep=0.01)", "heavy"),
    ]
    sign = rows[0]
    assert sign.both > 0
    assert sign.torch_ratio is None
    assert sign.bits == pytest.approx(1 + 32 / 3000, rel=0.01)  # and some padding
    assert sign.error == pytest.approx(1 - 2 / np.pi, rel=0.1)
    # The output of decompress alone is one vector.
    assert 1 <= sign.decompress_memory < 3
    assert [row["method"] for row in rows_of(tmp_path / "compress.csv")] == [
        row.method for row in rows
    ]
    assert (tmp_path / "compress.png").stat().st_size > 10_000
    assert "one read pass" in capsys.readouterr().out


def test_compress_covers_every_method():
    covered = {case.spec.split("(")[0] for case in compress._chosen(None)}
    assert covered >= set(compressors.REGISTRY)
    for case in compress.CASES:
        assert make_compressor(case.spec).name


@pytest.fixture
def gradient_file(tmp_path):
    """What benchmarks.gradients saves, of a model with two tensors."""
    vectors_ = {
        name: np.random.default_rng(i).normal(size=64 * 20 + 20).astype(np.float32)
        for i, name in enumerate(("early", "late"))
    }
    found = gradients.Gradients(
        vectors=vectors_,
        steps={"early": 10, "late": 99},
        names=["Dense_0/kernel", "Dense_0/bias"],
        shapes=[(64, 20), (20,)],
    )
    gradients.save(tmp_path / "gradients.npz", found)
    return tmp_path / "gradients.npz"


@pytest.mark.slow
def test_error_measures_and_writes(tmp_path, capsys, gradient_file, monkeypatch):
    lines = (
        error.Line("sparse", "top_k(keep={})", (0.01, 0.1)),
        error.Line("quantised", "sign"),
        error.Line("low rank", "svd(rank={})", (2,), matrices=True),
    )
    monkeypatch.setattr(error, "LINES", lines)
    monkeypatch.setattr(error, "THEORY", (("sign", 1 - 2 / np.pi),))
    monkeypatch.setattr(error, "THEORY_SIZE", 1 << 16)
    few = ["--size=2048", "--draws=1", "--methods", "top_k", "sign", "svd"]
    rows = error.main([f"--out={tmp_path}", f"--gradients={gradient_file}", *few])
    names = ["gaussian", "log-normal", "gradient, step 10", "gradient, step 99"]
    assert list(dict.fromkeys(row.data for row in rows)) == names
    assert len(rows_of(tmp_path / "error.csv")) == len(rows) == 4 * len(names)
    less, more = (r for r in rows if r.family == "sparse" and r.data == "gaussian")
    assert less.bits < more.bits
    assert less.error > more.error
    # Tensor by tensor: 64 x 20, and the bias of 20 folded to 5 x 4.
    svd = next(r for r in rows if r.family == "low rank" and r.data == names[2])
    assert svd.bits == 32 * (2 * (64 + 20) + 2 * (5 + 4)) / (64 * 20 + 20)
    assert (tmp_path / "error.png").stat().st_size > 10_000
    assert "expected" in capsys.readouterr().out


def test_error_covers_every_method():
    covered = {line.spec.split("(")[0] for line in error.lines(None)}
    assert covered >= set(compressors.REGISTRY)
    for line in error.LINES:
        for spec in line.specs():
            assert make_compressor(spec).name


@pytest.mark.slow
def test_gradients_come_from_the_trainer_s_own_batches():
    """Of a run that is too small to be of interest."""
    config = small_config(workers=1, exchange="exact", memory="none")
    setup = built(config)
    *_, found = gradients.snapshots(setup, config, {1: "early", 3: "late"})
    assert found.steps == {"early": 1, "late": 3}
    assert found.names == setup.leaf_names
    for moment in found.steps:
        sizes = [tensor.shape for tensor in found.tensors(moment)]
        assert sizes == found.shapes
        assert np.all(np.isfinite(found.vectors[moment]))
    assert np.any(found.vectors["early"] != found.vectors["late"])


# --- Gossip ---------------------------------------------------------------------------


def test_gossip_covers_every_method_that_is_no_simulation():
    covered = {case.mixer for case in gossip.CASES}
    simulated = {"delayed_sgd", "stale_hypercube"}
    assert covered == {*algorithms.REGISTRY, *local.REGISTRY} - simulated


@pytest.mark.slow
def test_gossip_measures_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trees, "named_tree", lambda *_: {"a": (300, 40), "b": (40,)})
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
    written = rows_of(tmp_path / "gossip.csv")
    assert [row["method"] for row in written] == [row.method for row in rows]
    assert "one read pass" in capsys.readouterr().out


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


# --- Training on slow links and with many workers -------------------------------------

TABLE = """epoch,step,seconds,test_accuracy,bytes_left
1,11,2.5,0.25,792
2,22,4.75,0.5,1584
3,33,7.25,0.
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "light"
    made.mkdir()
    (made / "metrics.csv").write_text(TABLE.removesuffix("\n"))  # the last line is torn
    return made


def test_runs_are_written_drawn_and_read_again(folder, tmp_path, capsys):
    rows = slow_training.main([str(folder), f"--out={tmp_path}"])
    assert rows == [
        SlowRow("light", 1, 11, 2.5, 792.0, 0.25),
        SlowRow("light", 2, 22, 4.75, 1584.0, 0.5),
    ]
    assert "light: 50.00 % after 4.75 s and 1.58 kB" in capsys.readouterr().out
    assert slow_training.main([f"--out={tmp_path}"]) == rows
    assert (tmp_path / "slow_training.png").stat().st_size > 10_000


@pytest.mark.slow
def test_workers_that_see_one_image_each_train(tmp_path):
    sizes = [f"--out={tmp_path}", "--workers", "256", "--train-for", "1 epoch"]
    sizes += ["--seeds", "0"]
    rows = simulated_workers.main(sizes)
    assert [row.method for row in rows] == [m.title for m in simulated_workers.METHODS]
    exact, gather, two_phase = (row.nbytes for row in rows)
    assert exact > two_phase > gather > 0

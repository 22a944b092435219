"""The benchmarks run, on little data and without peers, and write what they say."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    compress,
    error,
    gradients,
    input_pipeline,
    step_overhead,
    throughput,
    vectors,
)
from jaxcomp import compressors, make_compressor
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


def test_error_fails_where_theory_is_missed(monkeypatch, tmp_path):
    monkeypatch.setattr(error, "THEORY", (("sign", 0.37),))
    with pytest.raises(SystemExit, match="off by more than 1 %: sign"):
        error.main(["--size=512", "--draws=1", "--methods", "sign"])


def test_error_covers_every_method():
    covered = {line.spec.split("(")[0] for line in error.lines(None)}
    assert covered >= set(compressors.REGISTRY)
    for line in error.LINES:
        for spec in line.specs():
            assert make_compressor(spec).name


@pytest.mark.parametrize("source", vectors.SOURCES)
def test_vectors_are_the_same_each_time(source):
    x, y = vectors.draw(source, (100,)), vectors.draw(source, (100,))
    np.testing.assert_array_equal(x, y)
    assert x.dtype == np.float32
    assert (x < 0).any()
    assert (x > 0).any()


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


@pytest.mark.slow
def test_step_overhead_times_both_steps(capsys):
    few = ["--steps=1", "--turns=1", "--workers=2", "--batch=8"]
    step_overhead.main(["--model=resnet8", "--size=8", *few])
    assert "ratio jaxcomp / hand-written: " in capsys.readouterr().out


@pytest.mark.slow
def test_input_pipeline_times_both_sides(capsys):
    few = ["--steps=1", "--turns=1", "--batch=8", "--model=tiny(width=2)"]
    assert input_pipeline.main(few) > 0
    assert "ratio augmented / constant: " in capsys.readouterr().out


@pytest.mark.slow
def test_throughput_without_torch_is_our_own(capsys, tmp_path):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    few = ["--steps=1", "--turns=1", "--batch=8", "--depth=8", f"--python={bare}"]
    assert throughput.main(few) is None
    said = capsys.readouterr().out
    assert "no torch: own figures" in said
    assert "images/s" in said

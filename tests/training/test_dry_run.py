"""A dry run says what the run would do, refuses what it would, and leaves no trace."""

import json
import os
import re

import jax
import pytest

from jaxcomp.cli import train
from jaxcomp.core import files
from jaxcomp.core.units import bytes_text
from jaxcomp.data import DataError
from jaxcomp.data import text as texts
from jaxcomp.data.preparable import preparable, stand_in_for
from jaxcomp.runs.display import traffic_line
from jaxcomp.runs.folder import RunError
from jaxcomp.training import dry_run
from jaxcomp.training.programs import run_traffic
from tests.training.small import built, small_config

SMALL = {"mapper": "vmap", "workers": 2}
KEYS = {"keep_warmup": "exponential(epochs=1)", "warmup": "4 steps"}


def table(text):
    """The rows of the schedule: step, epoch and rate."""
    rows = re.findall(r"^ +([\d,]+) +([\d.]+)  (\S+)$", text, re.MULTILINE)
    return [tuple(float(cell.replace(",", "")) for cell in row) for row in rows]


@pytest.fixture(scope="module")
def told():
    config = small_config(**SMALL, **KEYS, schedule="multistep(epochs=[1])")
    return dry_run(config, "nowhere/run")


def test_the_figures_are_those_of_the_run(told):
    setup = built(small_config(**SMALL))
    state = jax.eval_shape(setup.fresh)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert f"({count:,} parameters)" in told
    assert "22 steps of 128 examples, 64 from each worker\n2 epochs of 11" in told
    assert "2,816 examples in all" in told
    kept = round(0.1 * count)
    assert re.search(r"^step 1, top_k\(keep=0\.316\d+\): each worker would", told, re.M)
    sent = re.search(r"^step 22, top_k\(keep=0\.1\): .* of (\d+) B a", told, re.M)
    assert sent
    # A float32 for each element kept, and the places in less than as much again.
    assert 4 * kept < float(sent[1]) < 8 * kept
    exact = bytes_text(4 * count)  # a step of two workers
    assert f"{sent[1]} B would leave it, and {exact} with exact" in told
    # Half of the steps are those of the warm-up.
    traffic, stages = run_traffic(built(small_config(**SMALL, **KEYS)))
    assert [t.left for t in stages.values()] == [t.wire for t in stages.values()]
    assert traffic.left == sum(t.wire for t in stages.values()) / 2
    whole = traffic_line(traffic.of(22), 22, moved=False)
    assert f"\nthe run: {whole}\n" in told
    assert f"{traffic.fewer:.3g} times fewer than the" in whole
    assert f"parameters {bytes_text(4 * count)}, optimiser" in told


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        # Each of 22 steps: a message goes to three others; the rest is forwarded.
        ({}, lambda dense, message: 22 * 3 * message),
        # Six steps are those of `exact`, as the second of two epochs' 8th and 16th.
        (
            {"dense_for": "4 steps", "flush_every": "8 steps"},
            lambda dense, message: 6 * 1.5 * dense + 16 * 3 * message,
        ),
        # Five rounds of four steps.
        (
            {"mixer": "local_sgd(h=4)", "memory": "none"},
            lambda dense, message: 5 * 3 * message,
        ),
        # Two hosts of two workers: halves are sent between hosts alone.
        (
            {"exchange": "hierarchical(per_host=2, outer=exact)", "memory": "none"},
            lambda dense, message: 22 * 2 * dense / 2,
        ),
    ],
    ids=["gather", "flushes", "local", "hosts"],
)
def test_what_leaves_a_worker_over_the_run(changes, left):
    """Each step counts with its own message, against as many of `exact`."""
    config = small_config(**{**SMALL, "workers": 4, "compressor": "sign", **changes})
    found, _ = run_traffic(built(config))
    message = 4 + 4 * -(-found.dense // 4 // 32)  # a scale, and a bit for each element
    assert 22 * found.left == pytest.approx(left(found.dense, message))
    assert found.exact == 2 * (4 - 1) / 4 * found.dense
    assert found.fewer == pytest.approx(found.exact / found.left)


def test_the_schedule_has_the_start_the_warm_up_and_the_drops(told):
    rows = {int(step): rate for step, _, rate in table(told)}
    assert len(rows) <= 12
    assert [rows[step] for step in (1, 4, 22)] == [0.025, 0.1, 0.01]
    assert {rate for step, rate in rows.items() if 4 <= step <= 11} == {0.1}


def test_what_costs_more_than_it_saves_is_a_warning():
    found = dry_run(small_config(**SMALL, compressor="top_k(keep=0.99)"), "nowhere")
    assert "WARNING: step 1 sends more than the gradient itself" in found


def test_the_folder_is_looked_at_and_left_alone(tmp_path):
    config, folder = small_config(**SMALL), tmp_path / "run"
    assert f"run folder: {folder}, a new run\n" in dry_run(config, folder)
    assert not folder.exists()
    (folder / "checkpoints/step_00000007").mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    assert "run, begun, without a checkpoint\n" in dry_run(config, folder)
    (folder / "checkpoints/step_00000007" / files.MANIFEST).write_text("{}")
    assert "run, goes on from step 7\n" in dry_run(config, folder)
    with pytest.raises(RunError, match=r"seed: the folder has 0, you ask for 1"):
        dry_run(small_config(**SMALL, seed=1), folder)
    assert dry_run(small_config(**SMALL, train_for="3 epochs"), folder)
    assert json.loads((folder / "config.json").read_text())["train_for"] == "2 epochs"


def test_the_command_ends_with_0_and_names_the_default_folder(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = "--config=default,parts/small --config.mapper=vmap --suffix=b --dry-run"
    keys = "--config.dataset=digits(size=8) --config.model=tiny "
    keys += "--config.augment=crop(pad=1)"
    assert train.main([*words.split(), *keys.split()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run folder: runs/default+small,augment=crop-pad=1,")
    assert ".b, a new run\n" in out
    assert train.main([*words.split(), "--config.exchange=gahter"]) == 2
    assert "Did you mean 'gather'?" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_data_that_are_not_prepared_stand_in_by_their_published_shapes(
    tmp_path, capsys
):
    config = small_config(
        **SMALL,
        data_dir=str(tmp_path),
        dataset="cifar10",
        model="mlp(hidden=[5], batch_norm=False)",
    )
    told = dry_run(config, "nowhere")
    assert f"({32 * 32 * 3 * 5 + 5 + 5 * 10 + 10:,} parameters)" in told
    assert "2 epochs of 390 steps, 99,840 examples in all" in told
    assert "WARNING: of published shapes only: cifar10 is not prepared" in told
    words = f"--config=papers/choco_lstm --config.data_dir={tmp_path} --dry-run"
    assert train.main([*words.split(), "--config.mapper=vmap"]) == 0
    assert "(31,811,778 parameters)" in capsys.readouterr().out
    assert stand_in_for("digits", tmp_path) == ""
    with config.unlocked():
        config.dataset = f"class_folders(path='{tmp_path}')"
    with pytest.raises(DataError, match="there is no folder"):
        dry_run(config, "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({"imagenet", *preparable()} - {*texts.SOURCES}))
def test_every_data_set_has_a_stand_in(name, tmp_path):
    config = small_config(**SMALL, data_dir=str(tmp_path), dataset=name, augment="flip")
    assert re.search(f"{name} is not (prepared|here)", dry_run(config, "nowhere"))

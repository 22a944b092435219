"""The trainer: the real function on shrunk configs."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import data, models, parallel, report, training, wire
from jaxcomp.core.coding.indices import coded_bits
from jaxcomp.core.types import ticked
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.table import EPOCHS
from jaxcomp.training import feed
from jaxcomp.training.checkpoints import open_checkpoints
from jaxcomp.training.running_metrics import Totals, step_figures
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.tables import epoch_line
from jaxcomp.training.tasks import ACCURACY
from tests.tiers import tiers
from tests.training.small import (
    NAN_WHERE_BLACK,
    assert_same_state,
    built,
    rows,
    small_config,
    stop_at,
)
from tests.workers import abstract


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run that several tests look at."""
    folder = tmp_path_factory.mktemp("run")
    return training.train_and_evaluate(small_config(), folder)


def test_it_learns(finished):
    table = rows(finished.folder / "metrics.csv")
    assert float(table[-1]["train_loss"]) < float(table[0]["train_loss"])
    assert finished.steps == 22
    assert finished.test_accuracy == pytest.approx(float(table[-1]["test_accuracy"]))


def test_the_run_folder_holds_what_is_promised(finished):
    folder = finished.folder
    config = json.loads((folder / "config.json").read_text())
    assert config == json.loads(small_config().to_json())
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["versions"]["jax"] == jax.__version__
    assert {"devices", "git_revision", "command", "started"} <= environment.keys()
    header = (folder / "metrics.csv").read_text().splitlines()[0]
    assert header == ",".join(EPOCHS.columns)
    steps = rows(folder / "steps.csv")
    assert [int(r["step"]) for r in steps] == [4, 8, 12, 16, 20]
    assert [r["epoch"] for r in steps] == ["1", "1", "2", "2", "2"]


def test_figures_of_traffic_are_those_of_the_program(finished):
    """top-k 10 %: kept values and coded places of one vector, in one all-gather."""
    params = parallel.to_host(finished.state.params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    kept = round(0.1 * size)
    by_hand = 4 * kept + math.ceil(coded_bits(size + 1, kept) / 32) * 4
    row = rows(finished.folder / "metrics.csv")[-1]
    assert int(row["wire_bytes_per_step"]) == by_hand == finished.traffic.wire
    assert int(row["dense_bytes_per_step"]) == 4 * size
    # Of two workers, each sends its message to the other one: in 22 steps.
    assert float(row["bytes_left"]) == 22 * by_hand
    assert float(row["exact_bytes_left"]) == 22 * 4 * size
    ratio = 4 * size / by_hand
    assert float(row["times_fewer"]) == pytest.approx(ratio, rel=1e-6)
    assert finished.traffic.fewer == pytest.approx(ratio)
    told = training.summary(finished)["each worker"]
    assert f"B left it, {ratio:.3g} times fewer than the" in told
    assert float(row["residual_norm"]) > 0
    assert 0 < float(row["gradient_error"]) < 1


def test_a_program_that_cannot_be_read_is_told_everywhere(
    finished, tmp_path, monkeypatch, capsys
):
    """The run goes on with the figure of the traced step, which here is the same."""
    line = "%r = f32[10]{0} all-shuffle(%x)"

    def unreadable(program):
        raise wire.WireError(f"cannot read a collective: {line}")

    monkeypatch.setattr(wire, "collectives", unreadable)
    result = training.train_and_evaluate(small_config(), tmp_path)
    assert result.traffic.wire == finished.traffic.wire
    [warning] = [li for li in capsys.readouterr().out.splitlines() if "WARNING" in li]
    assert line in warning
    assert "TRACED" in str(result.traffic)
    assert "as traced" in training.summary(result)["each worker"]
    for row in rows(tmp_path / "metrics.csv"):
        assert (row["traced"], row["simulated"]) == ("1", "0")
    page = report.write_report(tmp_path).read_text()
    assert 'role="alert">From epoch 1 on, bytes were counted in the traced' in page


def test_a_run_that_learns_has_no_alarm(finished):
    table = rows(finished.folder / "metrics.csv")
    assert [row["residual_grows"] for row in table] == ["0", "0"]
    assert [row["traced"] for row in table] == ["0", "0"]
    assert "traced" not in training.summary(finished)["each worker"]
    page = report.write_report(finished.folder).read_text()
    assert 'role="alert"' not in page


def test_a_finished_run_is_not_run_again(finished):
    before = (finished.folder / "metrics.csv").read_text()
    again = training.train_and_evaluate(small_config(), finished.folder)
    assert_same_state(again.state, finished.state)
    assert again.test_accuracy == finished.test_accuracy
    assert (finished.folder / "metrics.csv").read_text() == before


def test_evaluate_only(finished):
    scores = training.evaluate(small_config(), finished.folder, "latest")
    assert scores["test_accuracy"] == pytest.approx(finished.test_accuracy)
    best = training.evaluate(small_config(), finished.folder, "best")
    assert best["test_accuracy"] == pytest.approx(finished.best)


def test_evaluate_counts_every_example_once(finished):
    """Against one forward pass over the whole set, without batches or workers."""
    digits = data.load("digits", size=8)
    model = models.make("tiny", 10, width=2)
    state = parallel.to_host(finished.state)
    stats = jax.tree.map(lambda x: x[0], state.stats.value)

    def accuracy(images, labels):
        normal = data.normalize(jnp.asarray(images), digits.mean, digits.std)
        variables = {"params": state.params, "batch_stats": stats}
        logits = model.apply(variables, normal, train=False)
        return pytest.approx(np.mean(np.argmax(np.asarray(logits), -1) == labels))

    right = accuracy(digits.test_images, digits.test_labels)
    assert finished.test_accuracy == right
    right = accuracy(digits.train_images, digits.train_labels)
    scores = training.evaluate(small_config(), finished.folder, "last", "train")
    assert scores["train_accuracy"] == right
    assert training.score_line(scores).startswith("step 22: train loss ")


def test_any_kept_checkpoint_is_evaluated_and_an_unknown_one_is_not(finished):
    for step in (11, 22):
        scores = training.evaluate(small_config(), finished.folder, f"{step}")
        assert scores["step"] == step
    with pytest.raises(
        RunError, match=r"no checkpoint '5'; it holds those of steps 11,"
    ):
        training.evaluate(small_config(), finished.folder, "5")


def test_evaluating_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no run: no config.json"):
        training.evaluate(small_config(), tmp_path)


def test_another_config_in_the_same_folder_is_refused(finished):
    with pytest.raises(ValueError, match="another config") as error:
        training.train_and_evaluate(
            small_config(seed=7, compressor="sign"), finished.folder
        )
    assert "seed: the folder has 0, you ask for 7" in str(error.value)
    assert "compressor: the folder has 'top_k(keep=0.1)'" in str(error.value)


@pytest.mark.parametrize("mapper", tiers(["shard_map", "vmap"], "vmap".__eq__))
def test_every_mapper_trains_to_the_same_model(finished, mapper, tmp_path):
    """Convolutions of a vmapped batch round differently, so to a tolerance."""
    result = training.train_and_evaluate(small_config(mapper=mapper), tmp_path)
    assert result.traffic.wire == finished.traffic.wire
    assert result.traffic.simulated == (mapper == "vmap")
    assert abs(result.test_accuracy - finished.test_accuracy) < 0.05


@pytest.mark.slow
def test_more_workers_than_devices_are_simulated(tmp_path):
    config = small_config(workers=16, mapper="vmap", train_for="3 steps")
    result = training.train_and_evaluate(config, tmp_path)
    assert result.steps == 3
    residuals = jax.tree.leaves(parallel.to_host(result.state.opt_state))
    assert any(r.shape[:1] == (16,) for r in residuals)


CLIP = "workers(limit=1)"


@pytest.mark.slow  # a fast one is in test_growth.py
@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": "exact", "memory": "none", "batch_norm": "sync"},
        {"exchange": "aligned_psum", "compressor": "random_k(keep=0.1)"},
        {"compressor": "qsgd(levels=7)", "memory": "none", "optimizer": "adam"},
        {
            "compressor": "sign",
            "scope": "only_large(min_size=20)",
            "clip": CLIP,
        },
    ],
    ids=lambda c: c.get("compressor", "exact"),
)
def test_other_methods_train(changes, tmp_path):
    config = small_config(train_for="6 steps", **changes)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam is not strict
        result = training.train_and_evaluate(config, tmp_path)
    finite = [np.isfinite(x).all() for x in jax.tree.leaves(result.state.params)]
    assert all(finite)


@pytest.mark.slow
def test_a_cap_that_binds_is_seen(tmp_path, capsys):
    """The mean of the steps' overflow stands in the line of the epoch."""
    config = small_config(
        train_for="3 steps", log_every=1, compressor="threshold(v=1e-9, cap=0.1)"
    )
    training.train_and_evaluate(config, tmp_path)
    logged = [float(row["overflow"]) for row in rows(tmp_path / "steps.csv")]
    assert min(logged) > 0
    said = f"  overflow {np.mean(logged):,.0f} a step"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("figures", "ending"),
    [({"overflow": [1000.0, 1400.0]}, "s  overflow 1,200 a step"), ({}, " s")],
)
def test_the_line_of_an_epoch_ends_with_what_found_no_room(figures, ending):
    usual = dict.fromkeys(StepMetrics._fields, np.ones(2))
    metrics = StepMetrics(**{**usual, "figures": figures})
    totals = Totals().add(step_figures(metrics)).add(step_figures(metrics))
    row = {**dict.fromkeys(EPOCHS.columns, 0.0), **totals.figures()}
    assert epoch_line(row, 1, ACCURACY).endswith(ending)


def test_sync_statistics_are_counted_and_equal_the_joint_batch(tmp_path):
    """Synchronised BatchNorm sends more than the gradients, and the figure says so."""
    config = small_config(
        exchange="exact", memory="none", batch_norm="sync", train_for="2 steps"
    )
    result = training.train_and_evaluate(config, tmp_path)
    dense = wire.dense_bytes(result.state.params)
    assert result.traffic.wire > dense


# --- Going on -----------------------------------------------------------------------


@pytest.mark.parametrize("step", tiers([5, 11, 17], (17).__eq__))
def test_an_interrupted_run_ends_the_same(finished, step, tmp_path, monkeypatch):
    """State to the bit, and tables too, wherever the interruption falls."""
    config = small_config()
    with monkeypatch.context() as patched:
        stop_at(patched, step)
        with pytest.raises(training.Interrupted, match=f"step {step} of 22"):
            training.train_and_evaluate(config, tmp_path)
    result = training.train_and_evaluate(config, tmp_path)
    assert_same_state(result.state, finished.state)
    for name in ("metrics.csv", "steps.csv"):
        assert rows(tmp_path / name) == rows(finished.folder / name)


# --- Numbers that are not finite ----------------------------------------------------


def poison(monkeypatch, *steps):
    """One worker's inputs of some steps are black; see `NAN_WHERE_BLACK`."""
    original_feed = feed.train_feed

    def poisoned(*args, **kwargs):
        number = kwargs["start"]
        for images, labels in original_feed(*args, **kwargs):
            if number in steps:
                images[1] = 0
            yield images, labels
            number += 1

    monkeypatch.setattr(feed, "train_feed", poisoned)


def test_a_nan_step_stops_with_step_leaf_and_norms(tmp_path, monkeypatch):
    poison(monkeypatch, 6)
    with pytest.raises(training.NonFinite) as error:
        training.train_and_evaluate(small_config(augment=NAN_WHERE_BLACK), tmp_path)
    message = str(error.value)
    assert "step 7 is not finite" in message
    assert "worker 1: " in message
    assert "worker 0: " not in message
    assert "kernel has norm nan" in message
    assert "--config.nonfinite=skip" in message


@pytest.mark.parametrize(
    "compressor",
    tiers(["top_k(keep=0.1)", "random_k(keep=0.05)"], "top_k(keep=0.1)".__eq__),
)
def test_a_nan_step_can_be_skipped(compressor, tmp_path, monkeypatch):
    """Nothing but the clocks moves, on any worker; residuals stay finite."""
    poison(monkeypatch, 0)
    stop_at(monkeypatch, 1)
    config = small_config(
        compressor=compressor, nonfinite="skip", augment=NAN_WHERE_BLACK
    )
    with pytest.raises(training.Interrupted):
        training.train_and_evaluate(config, tmp_path)
    setup = built(config)
    expected = parallel.spread(setup.fresh(), setup.workers)
    checkpoints = open_checkpoints(tmp_path / "checkpoints")
    saved = checkpoints.restore(abstract(expected), "latest")
    assert saved is not None
    assert_same_state(saved.state, ticked(expected))
    assert int(saved.state.step) == 1


def test_divergence_stops_the_run(tmp_path):
    """A real one, without any trick: the learning rate is absurd."""
    with pytest.raises(training.NonFinite, match="Lower the learning rate"):
        training.train_and_evaluate(small_config(learning_rate=1e30), tmp_path)

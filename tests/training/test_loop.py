"""The whole run: what it learns, writes, refuses and looks at."""

import csv
import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from jaxcomp import data, models, parallel, report, training, wire
from jaxcomp.core.coding.indices import coded_bits
from jaxcomp.core.types import PerWorker, ticked
from jaxcomp.runs.folder import RunError
from jaxcomp.runs.table import EPOCHS
from jaxcomp.training import feed, loop, programs, running_metrics
from jaxcomp.training.checkpoints import open_checkpoints
from jaxcomp.training.diagnostics import (
    ReplicasDiffer,
    make_replica_check,
)
from jaxcomp.training.plan import RunPlan
from jaxcomp.training.state import initial_variables
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
    assert training.evaluate(small_config(), finished.folder, "11")["step"] == 11
    best = training.evaluate(small_config(), finished.folder, "best")
    assert best["test_accuracy"] == pytest.approx(finished.best)
    with pytest.raises(
        RunError, match=r"no checkpoint '5'; it holds those of steps 11,"
    ):
        training.evaluate(small_config(), finished.folder, "5")


@pytest.mark.parametrize("mapper", tiers(["shard_map", "vmap"], "vmap".__eq__))
def test_every_mapper_trains_to_the_same_model(finished, mapper, tmp_path):
    """Convolutions of a vmapped batch round differently, so to a tolerance."""
    result = training.train_and_evaluate(small_config(mapper=mapper), tmp_path)
    assert result.traffic.wire == finished.traffic.wire
    assert result.traffic.simulated == (mapper == "vmap")
    assert abs(result.test_accuracy - finished.test_accuracy) < 0.05


# --- Going on -------------------------------------------------------------------------


@pytest.mark.parametrize("step", tiers([11, 17], (17).__eq__))
def test_an_interrupted_run_ends_the_same(finished, step, tmp_path, monkeypatch):
    """State to the bit, and tables too, wherever the interruption falls."""
    config = small_config()
    with monkeypatch.context() as patched:
        stop_at(patched, step)
        with pytest.raises(training.Interrupted, match=f"step {step} of 22"):
            training.train_and_evaluate(config, tmp_path)
    fresh = RunPlan.fresh

    def traced(*args):
        """What fits once fits again: beside the restored state there is no other."""
        made = fresh(*args)
        assert all(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(made))
        return made

    monkeypatch.setattr(RunPlan, "fresh", traced)
    result = training.train_and_evaluate(config, tmp_path)
    assert_same_state(result.state, finished.state)
    for name in ("metrics.csv", "steps.csv"):
        assert rows(tmp_path / name) == rows(finished.folder / name)


# --- Numbers that are not finite ------------------------------------------------------


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


# --- The distance of the parameters from those with which a run b ---------------------


def distances(folder):
    """Of each epoch."""
    return [float(row["distance"]) for row in rows(folder / "metrics.csv")]


def test_it_is_that_of_the_parameters_of_the_seed(finished):
    task = built(small_config(seed=0)).task
    begin = jax.device_get(initial_variables(task, seed=0).params)
    end = parallel.to_host(finished.state).params
    squares = jax.tree.map(lambda x, y: float(np.sum((x - y) ** 2)), end, begin)
    right = np.sqrt(sum(jax.tree.leaves(squares)))
    first, last = distances(finished.folder)
    assert last == pytest.approx(right, rel=1e-5)
    assert 0 < first < last


# --- Drift between the copies of a state: it is injected, found a ---------------------


def drifted(x: jax.Array, worker: int) -> jax.Array:
    """A replicated array of which one device's copy differs in one bit."""
    parts = [np.array(shard.data) for shard in x.addressable_shards]
    bits = parts[worker].view(np.uint32).reshape(-1)
    bits[-1] ^= 1
    devices = [shard.device for shard in x.addressable_shards]
    pieces = [jax.device_put(p, d) for p, d in zip(parts, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, pieces)


@pytest.mark.parametrize("mapper", ["pmap"])
def test_one_bit_of_one_copy_is_found_and_named(mapper):
    workers = parallel.setup(4, mapper)
    rng = np.random.default_rng(0)
    fresh = {
        "w": rng.normal(size=(3, 5)).astype(np.float32),
        "none": np.zeros((0, 2), np.float32),
        "half": np.asarray(rng.normal(size=7), np.float16),
        "flags": np.ones(3, bool),
        "key": jax.random.key(1),
        "count": np.int32(3),
        "kept": PerWorker(np.zeros(2, np.float32)),
    }
    state = parallel.spread(fresh, workers)
    own = rng.normal(size=(4, 2)).astype(np.float32)
    state["kept"] = parallel.place(PerWorker(own), workers, PerWorker(0))
    check = make_replica_check(workers, state)
    check(state, 1)
    for name in ("w", "count"):
        with pytest.raises(ReplicasDiffer) as error:
            check({**state, name: drifted(state[name], 2)}, 7)
        message = str(error.value)
        assert "after step 7 the copies of 1 of 4 workers differ" in message
        assert f"  worker 2 ({jax.devices()[2]}): {name}\n" in message
        assert message.count("  worker ") == 1


def test_a_run_stops_before_it_saves_a_state_that_has_drifted(tmp_path, monkeypatch):
    take_step, taken = loop.take_step, []

    def drifting(program, state, *args):
        if len(taken) == 13:
            kernel = state.params["Dense_0"]["kernel"]
            state.params["Dense_0"]["kernel"] = drifted(kernel, 1)
        taken.append(1)
        return take_step(program, state, *args)

    monkeypatch.setattr(loop, "take_step", drifting)
    with pytest.raises(ReplicasDiffer, match="after step 22"):
        training.train_and_evaluate(small_config(), tmp_path)
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["11"]


# --- What a look at a run's figures costs, and the times it repor ---------------------

SECONDS = 10.0  # that the devices take for a step; handing it over takes none


class Clock:
    """A clock that moves by hand, and a device that takes steps one after another."""

    def __init__(self):
        self.now = self.free = 0.0

    def perf_counter(self):
        return self.now

    def issue(self):
        self.free = max(self.now, self.free) + SECONDS

    def wait(self):
        self.now = max(self.now, self.free)


@pytest.fixture
def clock(monkeypatch):
    """Let a run see this clock, and let its steps take time on the device alone."""
    clock, take_step, to_host = Clock(), loop.take_step, parallel.to_host
    by_hand = SimpleNamespace(perf_counter=clock.perf_counter)
    for module in (loop, programs, running_metrics):
        monkeypatch.setattr(module, "time", by_hand)
    monkeypatch.setattr(
        loop, "take_step", lambda *args: clock.issue() or take_step(*args)
    )
    monkeypatch.setattr(parallel, "to_host", lambda tree: clock.wait() or to_host(tree))
    return clock


def test_times_are_wall_times_where_no_step_is_waited_for(clock, tmp_path, monkeypatch):
    """As on a GPU: the host is done with a step long before the device is."""
    waits = []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "block_until_ready", waits.append)
    result = training.train_and_evaluate(small_config(mapper="vmap"), tmp_path)
    assert not waits
    assert result.seconds == pytest.approx(22 * SECONDS)
    assert result.seconds == pytest.approx(clock.now)
    with open(tmp_path / "steps.csv") as file:
        logged = list(csv.DictReader(file))
    for row in logged:
        parts = [float(row[f"{part}_seconds"]) for part in ("data", "step", "wait")]
        assert sum(parts) == pytest.approx(SECONDS)
        assert float(row["images_per_second"]) == pytest.approx(128 / SECONDS)
    assert [row["step"] for row in logged] == ["4", "8", "12", "16", "20"]


def test_compiling_is_not_in_the_time_of_steps(clock, tmp_path, monkeypatch):
    """The second stage is compiled while the device still works on the first."""
    compile_step = programs._compile_step

    def slow(*args):
        clock.now += 1000
        return compile_step(*args)

    monkeypatch.setattr(programs, "_compile_step", slow)
    monkeypatch.setattr(jax, "block_until_ready", lambda tree: clock.wait())
    monkeypatch.setattr(loop, "throttle", lambda arrays: None)
    config = small_config(mapper="vmap", dense_for="2 steps", train_for="4 steps")
    result = training.train_and_evaluate(config, tmp_path)
    assert clock.now > 2000
    assert result.seconds == pytest.approx(4 * SECONDS)


def test_a_cpu_is_waited_for_at_every_step(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(jax, "block_until_ready", waits.append)
    config = small_config(mapper="vmap", train_for="6 steps", eval_every="9 epochs")
    training.train_and_evaluate(config, tmp_path)
    assert len(waits) >= 6

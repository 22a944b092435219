"""What a look at a run's figures costs, and the times it reports on accelerators."""

import csv
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import array

from jaxcomp import parallel, training
from jaxcomp.training import loop, running_metrics
from jaxcomp.training.plan import RunPlan
from jaxcomp.training.running_metrics import make_recorder
from jaxcomp.training.step import StepMetrics
from tests.training.small import rows, small_config

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
    clock = Clock()

    def recording(*args):
        recorder = make_recorder(*args)

        def record(*args):
            clock.issue()
            return recorder.record(*args)

        def read(*args):
            clock.wait()
            return recorder.read(*args)

        return recorder._replace(record=record, read=read)

    by_hand = SimpleNamespace(perf_counter=clock.perf_counter)
    for module in (loop, running_metrics):
        monkeypatch.setattr(module, "time", by_hand)
    monkeypatch.setattr(loop, "make_recorder", recording)
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
    compile_step = loop.make_programs

    def slow(setup, say):
        made = compile_step(setup, say)

        def at(number, state):
            clock.now += 0 if made.is_compiled(number) else 1000
            return made.at(number, state)

        return made._replace(at=at)

    def wait(tree):
        clock.wait()
        return tree

    monkeypatch.setattr(loop, "make_programs", slow)
    monkeypatch.setattr(jax, "block_until_ready", wait)
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


def test_a_look_copies_one_array_to_the_host(tmp_path, monkeypatch):
    """22 steps of two workers: a look at each fourth step and at the end of an epoch.

    The rest of a run makes copies too, so two runs are compared.
    """

    def copies(folder, **changes):
        count = []
        with monkeypatch.context() as patched:
            value = array.ArrayImpl._value
            seen = property(lambda x: count.append(x.shape) or value.fget(x))
            patched.setattr(array.ArrayImpl, "_value", seen)
            # It is computed on the host, and here that is a device too.
            patched.setattr(RunPlan, "rate_on_host", lambda *_: 0.1)
            training.train_and_evaluate(small_config(**changes), tmp_path / folder)
        return len(count)

    often, seldom = copies("a", log_every=1), copies("b", log_every=11)
    assert often - seldom == 22 - 2
    assert len(rows(tmp_path / "a" / "steps.csv")) == 22


def test_every_kind_of_figure_comes_back_to_the_bit():
    workers = parallel.setup(2, "pmap")
    rng = np.random.default_rng(0)

    def figures():
        one = rng.normal(size=2).astype("f")
        usual: dict[str, Any] = dict.fromkeys(StepMetrics._fields, one)
        usual["applied"] = rng.integers(2, size=2).astype(bool)
        usual["gradient_norms"] = rng.normal(size=(2, 3)).astype("f")
        extra: dict[str, Any] = {"count": rng.integers(2**31, size=2).astype(np.int32)}
        extra["half"] = np.asarray(jnp.asarray(rng.normal(size=2), jnp.bfloat16))
        extra["nan"] = np.array([np.nan, -0.0], np.float32)
        return StepMetrics(**{**usual, "figures": extra})

    steps = [figures() for _ in range(5)]
    recorder = make_recorder(workers, steps[0], 4)
    kept = recorder.start()
    for step in steps:
        kept = recorder.record(kept, parallel.place(step, workers, 0))
    for count in (1, 3, 4):
        read = recorder.read(kept, count)
        assert len(read) == count
        for found, wanted in zip(read, steps[-count:], strict=True):
            for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
                assert a.dtype == b.dtype
                assert a.tobytes() == b.tobytes()

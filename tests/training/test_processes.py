"""Real processes: killed ones, interrupted ones, and two that are one."""

import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcomp import parallel
from jaxcomp.training import train_and_evaluate
from jaxcomp.training.checkpoints import open_checkpoints
from tests.training.small import assert_same_state, built, rows, small_config
from tests.workers import abstract

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = small_config(
    workers=4,
    train_for="60 steps",
    checkpoint_every="7 steps",
    augment="crop(pad=1)",  # its draws too are those of the step
)
FLAGS = [f"--config.{key}={CONFIG[key]}" for key in CONFIG if CONFIG[key] != ""]
EMPTY = [f"--config.{key}=" for key in CONFIG if CONFIG[key] == ""]


def command(folder: Path, *extra: str) -> list[str]:
    script = [sys.executable, "train.py", "--config=configs/default.py"]
    return [*script, f"--workdir={folder}", *FLAGS, *EMPTY, *extra]


def begin(folder: Path, *extra: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "NPROC"}
    return subprocess.Popen(
        command(folder, *extra),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def final_state(folder: Path, config=CONFIG):
    setup = built(config)
    like = abstract(parallel.spread(setup.fresh(), setup.workers))
    restored = open_checkpoints(folder / "checkpoints").restore(like, "latest")
    assert restored is not None
    assert restored.step == setup.total_steps
    return restored.state


def wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    """Until the run has logged a step; the kill then falls somewhere behind it."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        path = folder / "steps.csv"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        if lines and int(lines[-1].split(",")[0] or 0) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not reached")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("unbroken")
    train_and_evaluate(CONFIG, folder)
    return folder


def stop(process: subprocess.Popen, signum: int) -> None:
    """Ask a run to end; it says what it did and how to go on."""
    process.send_signal(signum)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signum, output
    assert "everything is saved" in output
    assert "Go on with the same command" in output
    assert "Traceback" not in output


def test_a_run_that_is_killed_and_then_stopped_ends_with_the_same_bits(
    unbroken, tmp_path
):
    process = begin(tmp_path)
    assert process.stdout is not None
    process.stdout.close()  # whoever reads its output does not end it
    wait_for_step(tmp_path, 12, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["output_lost"] == "[Errno 32] Broken pipe"
    process = begin(tmp_path)
    wait_for_step(tmp_path, 28, process)
    stop(process, signal.SIGTERM)
    train_and_evaluate(CONFIG, tmp_path)
    assert_same_state(final_state(tmp_path), final_state(unbroken))
    assert rows(tmp_path / "metrics.csv") == rows(unbroken / "metrics.csv")
    assert rows(tmp_path / "steps.csv") == rows(unbroken / "steps.csv")


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_kills_at_random_moments(unbroken, tmp_path, attempt):
    """At any moment: while compiling, stepping, or in the middle of a checkpoint."""
    delays = random.Random(attempt)
    for _ in range(2):
        process = begin(tmp_path)
        time.sleep(delays.uniform(1.5, 8))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(begin(tmp_path))
    assert_same_state(final_state(tmp_path), final_state(unbroken))
    assert rows(tmp_path / "metrics.csv") == rows(unbroken / "metrics.csv")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_on_two(folder: Path, *extra: str) -> list[str]:
    """The same command on two processes, to the end; what each printed."""
    address = f"--coordinator=127.0.0.1:{free_port()}"
    pair = [
        begin(folder, address, "--processes=2", f"--process={index}", *extra)
        for index in range(2)
    ]
    try:
        return [finish(process) for process in pair]
    finally:
        for process in pair:
            process.kill()


def test_two_processes_are_one_with_as_many_devices(unbroken, tmp_path):
    """Four workers over two processes: the same model, checkpoint and tables."""
    outputs = run_on_two(tmp_path)
    assert "test accuracy" in outputs[0]
    assert "epoch" not in outputs[1], "the first process does the talking"
    ours, theirs = final_state(tmp_path), final_state(unbroken)
    assert_same_state(ours.params, theirs.params)
    assert_same_state(ours.opt_state, theirs.opt_state)
    # Statistics are averaged by an all-reduce, which adds in another order elsewhere.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    jax.tree.map(close, *map(parallel.to_host, (ours.stats, theirs.stats)))
    tables = [rows(folder / "metrics.csv") for folder in (tmp_path, unbroken)]
    for a, b in zip(*tables, strict=True):
        assert a["test_accuracy"] == b["test_accuracy"]
        assert float(a["train_loss"]) == pytest.approx(float(b["train_loss"]))
        # Three messages leave a worker in a ring of four, and a host of two of them.
        for column in ("wire_bytes_per_step", "bytes_left", "times_fewer"):
            assert a[column] == b[column]
    # Rows of steps are of the workers of both processes.
    steps = [rows(folder / "steps.csv") for folder in (tmp_path, unbroken)]
    assert len(steps[0]) == len(steps[1]) == 15
    for a, b in zip(*steps, strict=True):
        for column in ("loss", "accuracy", "gradient_norm", "residual_norm"):
            assert float(a[column]) == pytest.approx(float(b[column]), rel=1e-5)


@pytest.mark.slow
def test_neighbours_may_live_in_another_process(tmp_path):
    """Gossip on a ring of four over two processes, each worker judged on its own."""
    changes = {
        "mixer": "choco(gamma=0.5)",
        "topology": "ring",
        "exchange": "",
        "memory": "",
        "compressor": "sign",
        "train_for": "25 steps",
    }
    config = small_config(workers=4, checkpoint_every="7 steps", **changes)
    flags = [f"--config.{k}={v}" for k, v in changes.items()]
    finish(begin(tmp_path / "one", *flags))
    run_on_two(tmp_path / "two", *flags)
    states = [final_state(tmp_path / name, config) for name in ("two", "one")]
    assert_same_state(states[0].params, states[1].params)
    assert_same_state(states[0].opt_state, states[1].opt_state)
    tables = [rows(tmp_path / name / "metrics.csv") for name in ("two", "one")]
    for a, b in zip(*tables, strict=True):
        for column in ("wire_bytes_per_step", "own_accuracy", "worst_accuracy"):
            assert a[column] == b[column]
        distances = [float(row["consensus_distance"]) for row in (a, b)]
        assert distances[0] == pytest.approx(distances[1], rel=1e-5)

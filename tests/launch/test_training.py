"""Whole runs under launchers: the bits of one process, failures and signals."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.small import assert_same_state, rows
from tests.training.test_processes import (
    CONFIG,
    ROOT,
    command,
    final_state,
    finish,
    wait_for_step,
)

LAUNCH = [sys.executable, "-m", "jaxcomp", "launch"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "NPROC"}


def begin(*words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env=ENVIRONMENT | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Four devices in one process."""
    folder = tmp_path_factory.mktemp("one")
    finish(begin(*command(folder)))
    return folder


def assert_same_run(ours: Path, theirs: Path, config: Any = CONFIG) -> None:
    a, b = (final_state(folder, config) for folder in (ours, theirs))
    assert_same_state(a.params, b.params)
    assert_same_state(a.opt_state, b.opt_state)
    tables = [rows(folder / "metrics.csv") for folder in (ours, theirs)]
    assert [r["test_accuracy"] for r in tables[0]] == [
        r["test_accuracy"] for r in tables[1]
    ]


@pytest.mark.slow
def test_two_processes_stop_together_and_end_as_one_would(one_process, tmp_path):
    """Ctrl-C at the launcher leaves a checkpoint; the same command goes on."""
    words = (*LAUNCH, "-n", "2", "--devices-per-process=2", "--", *command(tmp_path))
    process = begin(*words)
    wait_for_step(tmp_path, 12, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "[0] stopped at step" in output
    output = finish(begin(*words))
    assert re.search(r"\[0\] .*4 workers \(pmap on 4 of 4 cpu devices, 2 proc", output)
    assert "[0] going on from step" in output
    assert_same_run(tmp_path, one_process)


@pytest.mark.slow
def test_as_many_threads_give_large_convolutions_the_same_bits(tmp_path):
    """Without NPROC, XLA has four threads in each of two processes and eight in one."""
    changed = {"model": "resnet20", "dataset": "digits(size=32)", "batch_size": 32}
    config = CONFIG.copy_and_resolve_references()
    config.update(train_for="4 steps", checkpoint_every="4 steps", **changed)
    extra = [f"--config.{key}={config[key]}" for key in (*changed, "train_for")]
    extra.append("--config.checkpoint_every=4 steps")
    launched = (*LAUNCH, "-n", "2", "--devices-per-process=2", "--")
    finish(begin(*command(tmp_path / "one", *extra), NPROC="8"))
    every = command(tmp_path / "two", *extra, "--config.workers=0")
    output = finish(begin(*launched, *every, NPROC="8"))
    assert "4 workers (pmap on 4 of 4 cpu devices, 2 processes)" in output
    assert_same_run(tmp_path / "one", tmp_path / "two", config)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun: openmpi-bin")
def test_mpirun_starts_the_same_run(one_process, tmp_path):
    may = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = ["mpirun", *may, "--oversubscribe", "-n", "2"]
    finish(begin(*mpirun, *command(tmp_path, "--coordinator=auto")))
    assert_same_run(tmp_path, one_process)


# --- What one process meets alone ---------------------------------------------------


def pair(words: list[str], more: str = "") -> tuple[int, str]:
    """Run a command on two processes; exit code and output."""
    script = f"{shlex.join(words)} {more}"
    process = begin(*LAUNCH, "-n", "2", "--", "sh", "-c", script)
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def test_processes_with_other_configs_are_refused(tmp_path):
    code, output = pair(command(tmp_path / "run"), "--config.seed=$JAXCOMP_PROCESS")
    assert code == 2, output
    for index in range(2):
        message = '"seed": 0 in process 0 on .*, and "seed": 1 in process 1'
        assert re.search(rf"\[{index}\] .*do not run the same: .*{message}", output)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_refused(tmp_path):
    code, output = pair(command(tmp_path), f"--workdir={tmp_path}/$JAXCOMP_PROCESS")
    assert code == 2, output
    assert f"{tmp_path}/1 on" in output
    assert "is not the folder of process 0 on" in output


@pytest.mark.slow
def test_a_refusal_of_one_process_is_that_of_all(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    code, output = pair(command(tmp_path))
    assert code == 2, output
    assert "[0] train.py: " in output
    assert "[1] train.py: another process failed: process 0 on" in output


@pytest.mark.slow
def test_a_failed_step_of_one_worker_stops_all(tmp_path):
    """Under a mixer, workers have models of their own, and one alone may fail."""
    mixer = ("mixer=d_psgd", "topology=ring", "exchange=", "memory=", "compressor=none")
    words = (*mixer, "task=tests.launch.failing:diverging")
    code, output = pair(command(tmp_path, *(f"--config.{word}" for word in words)))
    assert code == 1, output
    assert "is not finite and was not applied" in output
    assert "another process failed: process" in output

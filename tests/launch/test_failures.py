"""What fails in a run of two processes: it goes on, or all end, and nothing hangs.

Each restart ends with the bits of a run that nothing happened to.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import namespaces
from tests.launch.test_launch import is_alive, until
from tests.launch.test_training import ENVIRONMENT, LAUNCH, assert_same_run, begin
from tests.training.small import small_config
from tests.training.test_processes import (
    ROOT,
    command,
    finish,
    free_port,
    wait_for_step,
)

pytestmark = pytest.mark.slow

PATIENCE = 10  # --peer-timeout
HANGS = 240  # seconds after which a process that should have ended fails the test
STEPS = {"train_for": "150 steps", "checkpoint_every": "20 steps"}
CONFIG = small_config(workers=4, **STEPS)
FLAGS = [f"--config.{key}={value}" for key, value in STEPS.items()]
FLAGS += [f"--peer-timeout={PATIENCE}"]
Inside = Callable[[int, list[str]], list[str]]


def begin_pair(
    folder: Path, *extra: str, host: str = "127.0.0.1", inside: Inside | None = None
) -> list[subprocess.Popen[str]]:
    """Two processes with two devices each; `inside` says on which host each runs."""
    address = f"{host}:{free_port()}"
    words = command(folder, *FLAGS, *extra)
    return [
        subprocess.Popen(
            inside(index, words) if inside else words,
            cwd=ROOT,
            env={
                **ENVIRONMENT,
                "JAXCOMP_COORDINATOR": address,
                "JAXCOMP_PROCESSES": "2",
                "JAXCOMP_PROCESS": str(index),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]


@contextlib.contextmanager
def pair(folder: Path, *extra: str, **where: object) -> Iterator[list]:
    """Two processes that have taken some steps; none is left behind."""
    processes = begin_pair(folder, *extra, **where)  # type: ignore[arg-type]
    try:
        wait_for_step(folder, 28, processes[0])
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str], harm: str = "") -> str:
    """What a process has said, once it has ended; with `-s` how long after the harm."""
    began = time.monotonic()
    output, _ = process.communicate(timeout=HANGS)
    if harm:
        print(f"\n{harm}: ended after {time.monotonic() - began:.1f} s")
    return output


def check_goes_on(folder: Path, unbroken: Path) -> None:
    """The same command goes on, to the bits of the run that nothing happened to."""
    words = ("-n", "2", "--devices-per-process=2", "--", *command(folder, *FLAGS))
    output = finish(begin(*LAUNCH, *words))
    assert "going on from step" in output
    assert_same_run(folder, unbroken, CONFIG)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Four devices in one process."""
    folder = tmp_path_factory.mktemp("unbroken")
    finish(begin(*command(folder, *FLAGS)))
    return folder


# --- Processes ------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1], ids=["coordinator", "worker"])
@pytest.mark.parametrize(
    "harm", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"]
)
def test_the_others_end_within_the_limit_and_say_why(harm, victim, unbroken, tmp_path):
    with pair(tmp_path) as processes:
        processes[victim].send_signal(harm)
        output = said(processes[1 - victim], f"{harm.name} to process {victim}")
        assert processes[1 - victim].returncode
        if harm == signal.SIGSTOP:
            processes[victim].send_signal(signal.SIGCONT)
            said(processes[victim])
            assert processes[victim].returncode
    assert "has lost another one" in output or "another task died" in output, output
    check_goes_on(tmp_path, unbroken)


def test_a_pause_that_is_shorter_than_the_limit_costs_nothing_but_time(
    unbroken, tmp_path
):
    """Longer than the 30 s of Gloo, and than the 40 s of XLA for stuck collectives."""
    with pair(tmp_path, "--peer-timeout=100") as processes:
        processes[1].send_signal(signal.SIGSTOP)
        time.sleep(55)
        processes[1].send_signal(signal.SIGCONT)
        outputs = [said(process) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    assert_same_run(tmp_path, unbroken, CONFIG)


def test_a_signal_to_one_process_lets_all_save(unbroken, tmp_path):
    with pair(tmp_path) as processes:
        processes[1].send_signal(signal.SIGTERM)
        outputs = [said(process, "SIGTERM to process 1") for process in processes]
        codes = [process.returncode for process in processes]
        assert codes == [128 + signal.SIGTERM] * 2, outputs
    assert all("everything is saved" in output for output in outputs)
    check_goes_on(tmp_path, unbroken)


def test_a_reader_that_leaves_ends_no_run(unbroken, tmp_path):
    with pair(tmp_path) as processes:
        processes[0].stdout.close()
        codes = [process.wait(HANGS) for process in processes]
        processes[0].stdout = None
    assert codes == [141, 0]
    assert "output_lost" in json.loads((tmp_path / "environment.json").read_text())
    assert_same_run(tmp_path, unbroken, CONFIG)


def test_processes_save_and_end_with_a_launcher_that_is_killed(unbroken, tmp_path):
    words = ("-n", "2", "--devices-per-process=2", "--", *command(tmp_path, *FLAGS))
    process = begin(*LAUNCH, "--grace=30", *words)
    wait_for_step(tmp_path, 28, process)
    pids = children(process)
    process.kill()
    process.communicate()
    until(lambda: not any(is_alive(pid) for pid in pids), HANGS)
    steps = [p.name for p in (tmp_path / "checkpoints").glob("step_*/manifest.json")]
    assert steps
    check_goes_on(tmp_path, unbroken)


def test_a_program_that_ends_one_process_ends_the_other(tmp_path):
    """By SystemExit, which no error of a run is."""
    processes = begin_pair(tmp_path, "--config.task=tests.launch.failing:leaving")
    outputs = [said(process) for process in processes]
    assert processes[0].returncode, outputs
    assert processes[1].returncode == 3
    assert "has lost another one" in outputs[0] or "another task died" in outputs[0]


def test_two_processes_of_one_number_end(tmp_path):
    processes = begin_pair(tmp_path, "--process=1", "--join-timeout=20")
    outputs = [said(process) for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert all("did not come to" in output for output in outputs)


# --- Links ----------------------------------------------------------------------------


@pytest.fixture
def net():
    reason = "needs root" if os.geteuid() else namespaces.why_not()
    if reason:
        pytest.skip(f"a network of namespaces {reason}")
    with namespaces.network(2) as made:
        yield made


def test_a_link_that_is_cut_ends_both_sides(net, unbroken, tmp_path):
    where = {"host": net.address(0), "inside": net.inside}
    with pair(tmp_path, **where) as processes:
        namespaces.run(["ip", "link", "set", net.port(1), "down"])
        outputs = [said(process, "the link is cut") for process in processes]
        assert all(process.returncode for process in processes), outputs
    check_goes_on(tmp_path, unbroken)


def test_a_link_that_loses_packets_costs_nothing_but_time(net, unbroken, tmp_path):
    if not shutil.which("iptables"):
        pytest.skip("needs iptables with its statistic match")
    loses = "iptables -A INPUT -m statistic --mode random --probability 0.03 -j DROP"
    for host in range(2):
        words = ["ip", "netns", "exec", net.namespace(host), *loses.split()]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("iptables has no statistic match here")
    where = {"host": net.address(0), "inside": net.inside}
    with pair(tmp_path, "--peer-timeout=60", **where) as processes:
        outputs = [said(process) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    assert_same_run(tmp_path, unbroken, CONFIG)


# --- Disks ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of some megabytes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_stops_all_and_is_told(small_disk, unbroken, tmp_path_factory):
    folder = small_disk / "run"
    with pair(folder) as processes:
        fill(small_disk / "filler", spare=60_000)
        outputs = [said(process, "the disk is full") for process in processes]
        # jax may end the other process itself, by a signal.
        assert all(process.returncode for process in processes), outputs
    assert any("No space left on device" in output for output in outputs)
    assert any("Make room, or take another --workdir" in output for output in outputs)
    assert not any("Traceback" in output for output in outputs), outputs
    (small_disk / "filler").unlink()
    check_goes_on(folder, unbroken)


def fill(path: Path, spare: int) -> None:
    """Leave so little that a checkpoint fails amid its files."""
    disk = os.statvfs(path.parent)
    path.write_bytes(bytes(disk.f_bavail * disk.f_frsize - spare))


def test_a_checkpoint_half_written_is_passed_over(unbroken, tmp_path):
    with pair(tmp_path) as processes:
        for process in processes:
            process.kill()
    newest = max((tmp_path / "checkpoints").glob("step_*/manifest.json")).parent
    (newest / "manifest.json").unlink()
    largest = max(newest.rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    check_goes_on(tmp_path, unbroken)


# --- Many kills -----------------------------------------------------------------------


def test_twenty_random_kills_end_with_the_same_bits(unbroken, tmp_path):
    """At any moment; a run that ends before the last kill is followed by another."""
    drawn = random.Random(0)
    kills = run = 0
    while kills < 20:
        folder = tmp_path / str(run)
        words = ("-n", "2", "--restarts=20", "--devices-per-process=2", "--")
        process = begin(*LAUNCH, *words, *command(folder, *FLAGS))
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=drawn.expovariate(1 / 6))
            victims = children(process) if kills < 20 else []
            if victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(drawn.choice(victims), signal.SIGKILL)
                    kills += 1
        assert process.returncode == 0
        assert_same_run(folder, unbroken, CONFIG)
        run += 1


def children(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes of a run that a launcher has started and that run."""
    path = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    if not path.exists():
        return []
    pids = [int(pid) for pid in path.read_text().split()]
    return [pid for pid in pids if "train.py" in named(pid) and is_alive(pid)]


def named(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""

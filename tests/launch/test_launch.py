"""`jaxcomp launch`: what it starts, what it prints, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcomp.cli.supervise import HERE, Host, make_children

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "jaxcomp", "launch"]
SAYS = "echo $JAXCOMP_PROCESS of $JAXCOMP_PROCESSES; echo wrong >&2"


def launch(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


def begun(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*LAUNCH, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and nobody has reaped does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except FileNotFoundError:
        return False


def until(is_so: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-8", "\N{REPLACEMENT CHARACTER}"), ("ascii", "?")]
)
def test_lines_say_which_process_they_are_of(encoding, mark):
    """Bytes that are no text are replaced, and what has no newline comes in pieces."""
    long = "head -c 200000 /dev/zero | tr '\\0' x"
    script = f"{SAYS}; printf 'a\\377b\\n'; {long}"
    done = launch("-n", "2", "--", "sh", "-c", script, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert sorted(done.stderr.splitlines()) == ["[0] wrong", "[1] wrong"]
    for index in range(2):
        front = f"[{index}] "
        lines = [x for x in done.stdout.splitlines() if x.startswith(front)]
        assert lines[:2] == [f"{front}{index} of 2", f"{front}a{mark}b"]
        assert max(map(len, lines)) <= len(front) + (1 << 16)
        assert sum(line.count("x") for line in lines) == 200_000


def test_the_first_failure_ends_all_and_is_the_exit_code(tmp_path):
    script = (
        f"echo $$ > {tmp_path}/$JAXCOMP_PROCESS; "
        f"while [ ! -s {tmp_path}/0 ]; do sleep 0.01; done; "
        "test $JAXCOMP_PROCESS = 1 && exit 7; exec sleep 100"
    )
    done = launch("-n", "2", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert "process 1 ended with exit code 7" in done.stderr
    assert not is_alive(int((tmp_path / "0").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_and_they_may_finish(number):
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo saved; exit 3' {name}; echo up; while :; do sleep 0.05; done"
    process = begun("-n", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert sorted(lines) == ["[0] up\n", "[1] up\n"]
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert sorted(rest.splitlines()) == ["[0] saved", "[1] saved"]
    assert process.returncode == 128 + number


def test_a_second_signal_kills():
    script = "trap '' INT TERM; echo up; while :; do sleep 0.05; done"
    process = begun("-n", "1", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] up\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_reader_who_leaves_ends_who_does_not_go_on(tmp_path):
    script = (
        "test $JAXCOMP_PROCESS = 1 && exec yes; "
        f"trap '' PIPE; sleep 0.5; echo x; touch {tmp_path}/end"
    )
    process = begun("-n", "2", "--", "sh", "-c", script)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert (tmp_path / "end").exists()


def test_a_full_disk_neither_blocks_nor_is_kept_back():
    """Each child prints more than a pipe holds."""
    words = (*LAUNCH, "-n", "2", "--", "sh", "-c", "seq 30000; echo end >&2")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.count(b"end\n") == 2
    assert b"the output is not whole: [Errno 28] No space left" in done.stderr


def test_the_processes_end_with_a_launcher_that_is_killed(tmp_path):
    """One ends by itself once it is asked, the other has to be killed."""
    script = (
        "exec >/dev/null 2>&1; "
        f"if [ $JAXCOMP_PROCESS = 1 ]; then trap '' TERM; "
        f"else trap 'touch {tmp_path}/saved; exit' TERM; fi; "
        f"echo $$ > {tmp_path}/$JAXCOMP_PROCESS; while :; do sleep 0.05; done"
    )
    process = begun("-n", "2", "--grace=1", "--", "sh", "-c", script)
    paths = [tmp_path / str(index) for index in range(2)]
    until(lambda: all(path.exists() and path.read_text() for path in paths))
    process.kill()
    process.communicate()
    pids = [int(path.read_text()) for path in paths]
    try:
        until(lambda: not any(is_alive(pid) for pid in pids), 20)
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "saved").exists()


def test_a_failure_starts_all_again(tmp_path):
    script = (
        f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 3 || kill -9 $$"
    )
    done = launch("-n", "1", "--restarts=2", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "ended with exit code 137; starting all again" in done.stderr
    assert "restarts left: 0" in done.stderr
    done = launch("-n", "1", "--restarts=2", "--", "sh", "-c", "exit 2")
    assert done.returncode == 2
    assert "again" not in done.stderr, "a mistake stays one"
    assert "exit code 2, which no restart mends" in done.stderr


def test_a_live_process_without_progress_is_stuck():
    words = ("-n", "2", "--stuck-after=1", "--", "sh", "-c")
    script = (
        "test $JAXCOMP_PROCESS = 1 && exec sleep 100; "
        'while :; do touch "$JAXCOMP_PROGRESS"; sleep 0.1; done'
    )
    done = launch(*words, script)
    assert done.returncode == 1
    assert "process 1 made no progress in" in done.stderr


# --- Several hosts ------------------------------------------------------------------


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A program with the name of ssh, which runs the command on this machine."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("ssh")
def test_hosts_are_reached_over_ssh_and_the_end_of_one_ends_the_others(tmp_path):
    script = (
        'echo "$JAXCOMP_PROCESS of $JAXCOMP_PROCESSES" in $(pwd) "$XLA_FLAGS"; '
        f"echo $$ > {tmp_path}/$JAXCOMP_PROCESS; "
        f"while [ ! -s {tmp_path}/0 ]; do sleep 0.01; done; "
        "test $JAXCOMP_PROCESS = 1 && exit 7; "
        f"trap 'touch {tmp_path}/asked; exit 1' TERM; while :; do sleep 0.05; done"
    )
    words = ("--hosts=a:2,me@b", "--", "sh", "-c", script)
    done = launch(*words, XLA_FLAGS="--x='y z'")
    assert sorted(done.stdout.splitlines()) == [
        f"[a:0] 0 of 3 in {ROOT} --x='y z'",
        f"[a:1] 1 of 3 in {ROOT} --x='y z'",
        f"[me@b:2] 2 of 3 in {ROOT} --x='y z'",
    ]
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "asked").exists()
    assert not is_alive(int((tmp_path / "0").read_text()))


def test_the_address_of_process_0_is_its_hosts():
    hosts = [Host("me@server0", 1), Host("server1", 1)]
    plan = make_children(
        ["a", "b c"], hosts, 8, 7, {"HOME": "/x", "NCCL_DEBUG": "1"}, 1
    )
    assert [child.command[:4] for child in plan] == [
        ["ssh", "-o", "BatchMode=yes", host.name] for host in hosts
    ]
    line = plan[1].command[4]
    assert "JAXCOMP_COORDINATOR=server0:7 JAXCOMP_PROCESSES=2 JAXCOMP_PROCESS=1" in line
    assert "JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7 a 'b c' </dev/null" in line
    assert "NCCL_DEBUG=1" in line
    assert "HOME" not in line


# --- Devices ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "devices", "expected"),
    [
        (1, None, [None]),
        (2, None, ["0", "1"]),
        (2, 2, ["0,1", "2,3"]),
        (1, 4, ["0,1,2,3"]),
    ],
)
def test_processes_of_a_host_share_its_devices(processes, devices, expected):
    plan = make_children(["a"], [Host(HERE, processes)], devices, 1, {})
    assert [child.variables.get("JAX_LOCAL_DEVICE_IDS") for child in plan] == expected
    counts = {child.variables.get("JAX_NUM_CPU_DEVICES") for child in plan}
    assert counts == {devices and str(devices)}

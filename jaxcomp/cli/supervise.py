"""Start the processes of a run, pass on what they say, and end or restart them."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.core.errors import UserError
from jaxcomp.core.output import PROGRESS, Output, as_output


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """The signals that this process gets, instead of ending by them."""
    caught: list[int] = []
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        wanted.append(signal.SIGHUP)
    before = {n: signal.signal(n, lambda n, frame: caught.append(n)) for n in wanted}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Host(NamedTuple):
    """A machine, as ssh knows it, and the number of processes that it gets."""

    name: str
    processes: int


HERE = ""  # the name of this machine


def parse_hosts(text: str) -> list[Host]:
    """The hosts of `--hosts`.

    Example:
      >>> parse_hosts("server0:8,me@server1")
      [Host(name='server0', processes=8), Host(name='me@server1', processes=1)]
    """
    hosts: list[Host] = []
    for word in text.split(","):
        name, _, count = word.strip().partition(":")
        count = count or "1"
        # A name with a dash in front would be an option of ssh.
        if not name or name.startswith("-") or not count.isdigit() or int(count) < 1:
            raise UserError(f"a host is NAME or NAME:PROCESSES, not {word!r}")
        hosts.append(Host(name, int(count)))
    names = [host.name for host in hosts]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"host {twice[0]!r} is named twice: write {twice[0]}:COUNT")
    return hosts


def remote_command(
    command: Sequence[str], variables: Mapping[str, str], folder: str, grace: float
) -> str:
    """The line for a remote shell; the process ends when its standard input does.

    ssh passes no signals on. So the shell asks the process to end once the launcher
    closes the connection, or has died, and kills it later if it has not ended.

    Args:
      command: words of the program.
      variables: environment variables that it gets.
      folder: where it runs.
      grace: seconds between asking and killing.
    """
    words = [f"{name}={value}" for name, value in variables.items()]
    program = shlex.join(["env", *words, *command])
    return (
        f"cd {shlex.quote(folder)} || exit 2; exec 3<&0; "
        f"{program} </dev/null 3<&- & child=$!; "
        "{ cat <&3; kill -TERM $child; "
        f"sleep {grace:g}; kill -KILL $child; }} >/dev/null 2>&1 & watcher=$!; "
        "exec 3<&-; wait $child; code=$?; kill $watcher 2>/dev/null; exit $code"
    )


# What decides how a process runs, and is therefore passed to other hosts.
_PASSED = ("JAX", "NCCL_", "XLA_", "GLOO_", "PYTHONPATH", "LD_LIBRARY_PATH")


class Child(NamedTuple):
    """A process to start."""

    label: str  # before each of its lines
    command: list[str]
    variables: dict[str, str]  # its whole environment
    over_ssh: bool = False  # it ends when its standard input does


def make_children(
    command: Sequence[str],
    hosts: Sequence[Host],
    devices: int | None,
    port: int,
    variables: Mapping[str, str],
    grace: float = 0.0,
) -> list[Child]:
    """The processes of a run, on this machine or over ssh.

    Args:
      command: words of the program, in the same folder on all hosts.
      hosts: process 0 runs on the first; `HERE` is the name of this machine.
      devices: of each process; None: one of the GPUs each, or all for one process.
      port: for process 0 to listen on.
      variables: of the environment; those that decide how jax runs are passed on.
      grace: seconds for a process to end once the connection is closed.
    """
    total = sum(host.processes for host in hosts)
    address = f"{hosts[0].name.rpartition('@')[2] or '127.0.0.1'}:{port}"
    passed = {n: v for n, v in variables.items() if n.startswith(_PASSED)}
    children: list[Child] = []
    for host in hosts:
        seen = variables if host.name == HERE else {}
        for local in range(host.processes):
            index = len(children)
            own = {
                "JAXCOMP_COORDINATOR": address,
                "JAXCOMP_PROCESSES": str(total),
                "JAXCOMP_PROCESS": str(index),
                "PYTHONUNBUFFERED": "1",  # a line is shown when it is printed
                **_devices(seen, devices, host.processes, local),
            }
            if host.name == HERE:
                children.append(Child(str(index), list(command), {**variables, **own}))
                continue
            line = remote_command(command, {**passed, **own}, os.getcwd(), grace)
            words = ["ssh", "-o", "BatchMode=yes", host.name, line]
            label = f"{host.name}:{index}"
            children.append(Child(label, words, dict(variables), over_ssh=True))
    return children


def _devices(
    variables: Mapping[str, str], devices: int | None, processes: int, local: int
) -> dict[str, str]:
    """The variables by which a process finds its share of the devices of its host."""
    if devices is None and processes == 1:
        return {}
    count = devices or 1
    share = range(local * count, (local + 1) * count)
    cpus = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    seen = [word for word in (listed or "").split(",") if word]
    if seen and len(seen) < processes * count:
        raise UserError(
            f"{processes} processes with {count} devices each need "
            f"{processes * count}, and CUDA_VISIBLE_DEVICES={listed} has {len(seen)}"
        )
    return {**cpus, "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, share))}


_LONGEST = 1 << 16  # bytes of a line; a longer one becomes several


def pass_on(
    pipe: Any, target: Output, label: str, lock: threading.Lock
) -> threading.Thread:
    """Start to pass on the lines of a pipe, in a thread.

    The pipe is read to its end, whatever becomes of the target, because a process waits
    for who reads it. Only if nobody reads the target is the pipe closed, so that the
    process itself decides what that means.

    Args:
      pipe: stdout or stderr of a process.
      target: the same of this process.
      label: before each line.
      lock: that keeps lines whole.
    """

    def copy() -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                text = line.decode(errors="replace").rstrip("\r\n")
                with lock:
                    target.write(f"[{label}] {text}\n")
                    target.flush()
                if isinstance(target.error, BrokenPipeError):
                    return

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


_POLL_SECONDS = 0.05
# After a failure: the others may be saying why they end, and may hang in a collective.
_OWN_END_SECONDS = 3.0
_KILL_SECONDS = 5.0
_SAVED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of the trainer


# A shell that leads the group of the processes. The kernel closes its input when the
# launcher ends, whatever ends that.
_GUARD = """
trap '' HUP INT TERM; exec >/dev/null 2>&1
cat; kill -s TERM 0; sleep "$1"; kill -s KILL 0
"""


class Ended(NamedTuple):
    """How processes ended."""

    code: int  # 0, that of the first failure, or 128 + the signal that ended all
    why: str  # "" if all has gone well
    was_asked: bool  # by a signal


def watch(
    children: Sequence[Child],
    grace: float,
    marks: Sequence[Path] = (),
    stuck_after: float = 0.0,
) -> Ended:
    """Run processes until all have ended.

    Args:
      children: the processes.
      grace: seconds between Ctrl-C, which all of them get, and SIGKILL.
      marks: files that they touch when they make progress.
      stuck_after: seconds without that, after which a process has failed; 0: never.
    """
    why, code, told, began = "", 0, 0, time.time()
    term_at = kill_at = float("inf")
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(caught_signals())
        running, group = stack.enter_context(_started(children, grace))
        while True:
            goes_on = any(process.poll() is None for process in running)
            now, failed = time.monotonic(), _first_failure(running)
            if len(caught) > told:
                _tell(running, group, signal.SIGKILL if told else caught[0])
                kill_at, told = min(kill_at, now + grace), len(caught)
            if failed is not None and not why:
                code = _exit_code(running[failed])
                why = f"process {children[failed].label} ended with exit code {code}"
                # Who has saved and ended is soon followed by those who do the same.
                may_save = told or running[failed].returncode in _SAVED
                seconds = grace if may_save else _OWN_END_SECONDS
                term_at = now + seconds
            elif stuck_after and not why and not told:
                silent = [_silence(mark, began) for mark in marks]
                late = [i for i, s in enumerate(silent) if s > stuck_after]
                if late := [i for i in late if running[i].poll() is None]:
                    passed = f"{silent[late[0]]:.0f} s"
                    why = f"process {late[0]} made no progress in {passed}"
                    code, term_at = 1, now
            if not goes_on:
                break
            if now >= term_at:
                _tell(running, group, signal.SIGTERM)
                term_at, kill_at = float("inf"), min(kill_at, now + _KILL_SECONDS)
            if now >= kill_at:
                _tell(running, group, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
    if caught and code:
        ended_by = signal.Signals(caught[0])
        return Ended(128 + ended_by, f"{ended_by.name} ended all processes", True)
    return Ended(code, why, False)


def _first_failure(running: list[subprocess.Popen[bytes]]) -> int | None:
    """Whoever a signal has ended comes first: the others fail for want of it.

    SIGABRT is how jax ends those who have lost another one.
    """
    codes = [process.poll() for process in running]
    failed = [index for index, code in enumerate(codes) if code]
    late = (-signal.SIGABRT, *range(1, 256))
    return min(failed, key=lambda index: codes[index] in late, default=None)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """As a shell says it: 128 + the signal that has ended a process."""
    code = process.returncode
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def process_group(grace: float) -> Iterator[int]:
    """A group for processes to start in, which end with this one, whatever ends it.

    Args:
      grace: seconds between SIGTERM, which they get then, and SIGKILL.

    Yields:
      Its number. At the end of the body all that is in it is killed.
    """
    words = ["sh", "-c", _GUARD, "guard", f"{grace:g}"]
    guard = subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0)
    try:
        yield guard.pid
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.communicate()


@contextlib.contextmanager
def _started(
    children: Sequence[Child], grace: float
) -> Iterator[tuple[list[subprocess.Popen[bytes]], int]]:
    """Start all, in a group of their own, so that Ctrl-C comes from here alone."""
    lock, running, threads = threading.Lock(), [], []
    out, err = as_output(sys.stdout), as_output(sys.stderr)
    with process_group(grace) as group:
        for child in children:
            try:
                process = subprocess.Popen(
                    child.command,
                    env=child.variables,
                    stdin=subprocess.PIPE if child.over_ssh else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    process_group=group,
                )
            except OSError as error:
                message = f"{child.command[0]} cannot be started: {error.strerror}"
                raise UserError(message) from None
            running.append(process)
            for pipe, target in ((process.stdout, out), (process.stderr, err)):
                threads.append(pass_on(pipe, target, child.label, lock))
        yield running, group
    for process in running:
        process.wait()
    for thread in threads:
        thread.join(1.0)  # a process of theirs may hold the pipe


def _tell(running: Sequence[subprocess.Popen[bytes]], group: int, number: int) -> None:
    """Send a signal to processes and to those that they have started.

    A closed terminal (SIGHUP) is passed on as SIGTERM, after which runs save. Over ssh
    a process ends when its input does.
    """
    number = signal.SIGTERM if number == signal.SIGHUP else number
    over_ssh = [process.stdin for process in running if process.stdin]
    if number == signal.SIGKILL or not over_ssh:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    else:
        for pipe in over_ssh:
            pipe.close()


# The exit codes of what only a person can mend, such as a wrong command or a full disk,
# and of a process whose output nobody reads: the same would come again.
_FINAL = (2, 141)


def supervise(
    plan: Callable[[], Sequence[Child]],
    grace: float,
    restarts: int = 0,
    stuck_after: float = 0.0,
) -> Ended:
    """Run processes, again after a failure; a run goes on from its checkpoint.

    Args:
      plan: makes the processes of an attempt, with a new port.
      grace: seconds between Ctrl-C and SIGKILL.
      restarts: how often they are started again.
      stuck_after: seconds without progress of a process, which then counts as failed;
        0: never.
    """
    ended = Ended(0, "", False)
    for attempt in range(restarts + 1):
        with tempfile.TemporaryDirectory(prefix="jaxcomp-launch-") as folder:
            children = list(plan())
            marks = [Path(folder) / str(index) for index in range(len(children))]
            for index, mark in enumerate(marks):
                variables = {**children[index].variables, PROGRESS: str(mark)}
                children[index] = children[index]._replace(variables=variables)
            ended = watch(children, grace, marks, stuck_after)
        if not ended.code or ended.was_asked:
            return ended
        if ended.code in _FINAL:
            final = "which no restart mends: see what it says above"
            return ended._replace(why=f"{ended.why}, {final}")
        left = restarts - attempt
        if left:
            message = f"{ended.why}; starting all again (restarts left: {left - 1})"
            print(f"jaxcomp launch: {message}", file=sys.stderr, flush=True)
    return ended


def _silence(mark: Path, began: float) -> float:
    """Seconds since a process has touched its file, or has begun."""
    return time.time() - (mark.stat().st_mtime if mark.exists() else began)


def free_port() -> int:
    """A port of this machine on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

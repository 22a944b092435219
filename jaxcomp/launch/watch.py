"""Start processes that belong together; when one fails, all of them end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.launch.output import pass_on
from jaxcomp.launch.plan import Child
from jaxcomp.launch.signals import caught_signals
from jaxcomp.output import as_output

__all__ = ["Ended", "watch"]

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
    disturb: Callable[[list[subprocess.Popen[bytes]]], str] = lambda running: "",
) -> Ended:
    """Run processes until all have ended.

    Args:
      children: the processes.
      grace: seconds between Ctrl-C, which all of them get, and SIGKILL.
      disturb: called all the time with the processes; a text ends all with that reason.
    """
    why, code, told = "", 0, 0
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
            elif not why and not told and (stuck := disturb(running)):
                code, why, term_at = 1, stuck, now
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
    failed = (i for i, process in enumerate(running) if process.poll())
    return next(failed, None)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """As a shell says it: 128 + the signal that has ended a process."""
    code = process.returncode
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _started(
    children: Sequence[Child], grace: float
) -> Iterator[tuple[list[subprocess.Popen[bytes]], int]]:
    """Start all, in a group of their own, so that Ctrl-C comes from here alone."""
    lock, running, threads = threading.Lock(), [], []
    out, err = as_output(sys.stdout), as_output(sys.stderr)
    words = ["sh", "-c", _GUARD, "guard", f"{grace:g}"]
    guard = subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0)
    try:
        for index, child in enumerate(children):
            try:
                process = subprocess.Popen(
                    child.command,
                    env=child.variables,
                    stdin=subprocess.PIPE if child.over_ssh else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    process_group=guard.pid,
                )
            except OSError as error:
                message = f"{child.command[0]} cannot be started: {error.strerror}"
                raise UserError(message) from None
            running.append(process)
            for pipe, target in ((process.stdout, out), (process.stderr, err)):
                threads.append(pass_on(pipe, target, child.label, index, lock))
        yield running, guard.pid
    finally:
        _tell(running, guard.pid, signal.SIGKILL)
        guard.communicate()
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

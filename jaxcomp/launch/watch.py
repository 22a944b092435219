"""Start processes that belong together; when one fails, all of them end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple, cast

from jaxcomp.errors import UserError
from jaxcomp.launch.output import pass_on
from jaxcomp.launch.plan import Child
from jaxcomp.launch.signals import caught_signals
from jaxcomp.runs.output import as_output

__all__ = ["Ended", "watch"]

_POLL_SECONDS = 0.05
# After a failure: the others may be saying why they end, and may hang in a collective.
_OWN_END_SECONDS = 3.0
_KILL_SECONDS = 5.0
_SAVED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of the trainer


# It gets the numbers of process groups, one a line, until the launcher has ended.
_GUARD = """
trap '' HUP INT TERM; exec >/dev/null 2>&1
while read -r group; do groups="$groups -$group"; done
tell() { left=; for group in $groups; do kill -s $1 -- $group && left=1; done; }
tell TERM
for second in $(seq $1); do sleep 1; tell 0; [ $left ] || exit 0; done
tell KILL
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
        running = stack.enter_context(_started(children, grace))
        while True:
            goes_on = any(process.poll() is None for process in running)
            now, failed = time.monotonic(), _first_failure(running)
            if len(caught) > told:
                _tell(running, children, signal.SIGKILL if told else caught[0])
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
                _tell(running, children, signal.SIGTERM)
                term_at, kill_at = float("inf"), min(kill_at, now + _KILL_SECONDS)
            if now >= kill_at:
                _tell(running, children, signal.SIGKILL)
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
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all, each in a session of its own, so that Ctrl-C comes from here alone."""
    lock, running, threads = threading.Lock(), [], []
    out, err = as_output(sys.stdout), as_output(sys.stderr)
    guard = _start_guard(grace)
    groups = cast(IO[bytes], guard.stdin)
    try:
        for index, child in enumerate(children):
            try:
                process = subprocess.Popen(
                    child.command,
                    env=child.variables,
                    stdin=subprocess.PIPE if child.over_ssh else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                message = f"{child.command[0]} cannot be started: {error.strerror}"
                raise UserError(message) from None
            running.append(process)
            groups.write(f"{process.pid}\n".encode())
            for pipe, target in ((process.stdout, out), (process.stderr, err)):
                threads.append(pass_on(pipe, target, child.label, index, lock))
        yield running
    finally:
        _tell(running, children[: len(running)], signal.SIGKILL)
        guard.kill()
        guard.communicate()
        for process in running:
            process.wait()
        for thread in threads:
            thread.join(1.0)  # a process of theirs may hold the pipe


def _start_guard(grace: float) -> subprocess.Popen[bytes]:
    """A process that ends the others if this one is killed: they save, or are killed.

    The kernel closes its input when this process ends, whatever ends it.
    """
    words = ["sh", "-c", _GUARD, "guard", f"{grace:.0f}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, bufsize=0, stdin=pipe, start_new_session=True)


def _tell(
    running: Sequence[subprocess.Popen[bytes]], children: Sequence[Child], number: int
) -> None:
    """Send a signal to processes and to those that they have started.

    A closed terminal (SIGHUP) is passed on as SIGTERM, after which runs save.
    """
    number = signal.SIGTERM if number == signal.SIGHUP else number
    for process, child in zip(running, children, strict=True):
        if child.over_ssh and number != signal.SIGKILL:
            if process.stdin and not process.stdin.closed:
                process.stdin.close()
            continue
        if process.poll() is None or number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

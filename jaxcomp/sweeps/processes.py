"""The processes of a sweep: one for each run, with a log; they end with the sweep."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxcomp.errors import UserError

__all__ = ["Started", "begin", "end", "exit_code", "largest_memory", "last_line"]

_SHOWN = 4000  # bytes at the end of a log


class Started(NamedTuple):
    """A run's process."""

    process: subprocess.Popen[bytes]
    log: Path
    began: float  # of time.monotonic


def begin(command: Sequence[str], log: Path) -> Started:
    """Start a process in a session of its own, so that Ctrl-C comes from here alone.

    Its input is a pipe that nobody writes to: it ends when this process does, whatever
    ends it, and the process has to end then.

    Args:
      command: its words.
      log: gets what it prints, after what is there.
    """
    with open(log, "ab") as file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            message = f"{command[0]} cannot be started: {error.strerror}"
            raise UserError(message) from None
    return Started(process, log, time.monotonic())


def exit_code(started: Started) -> int | None:
    """The exit code of a process; None while it runs."""
    code = started.process.poll()
    if code is not None and started.process.stdin:
        started.process.stdin.close()
    return code


def end(started: Started, number: int = signal.SIGTERM) -> None:
    """Send a signal to a process and to those that it has started."""
    if started.process.poll() is None:
        os.killpg(started.process.pid, number)


def last_line(log: Path) -> str:
    """The last line of a log that says something, such as an error."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _SHOWN))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def largest_memory() -> int:
    """Bytes that the largest of the runs that have ended has needed; 0 before."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit

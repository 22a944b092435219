"""The lines of several processes on one terminal, each with its process in front."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from jaxcomp.output import Output

__all__ = ["coloured", "pass_on"]

_LONGEST = 1 << 16  # bytes of a line; a longer one becomes several
_COLOURS = (36, 33, 32, 35, 34, 31)  # of ANSI: cyan first, red last


def coloured(stream: Any, variables: Mapping[str, str]) -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set."""
    plain = variables.get("NO_COLOR") or variables.get("TERM") == "dumb"
    return not plain and stream.isatty()


def pass_on(
    pipe: Any, target: Output, label: str, index: int, lock: threading.Lock
) -> threading.Thread:
    """Start to pass on the lines of a pipe, in a thread.

    The pipe is read to its end, whatever becomes of the target, because a process waits
    for who reads it. Only if nobody reads the target is the pipe closed, so that the
    process itself decides what that means.

    Args:
      pipe: stdout or stderr of a process.
      target: the same of this process.
      label: before each line.
      index: of its colour.
      lock: that keeps lines whole.
    """
    front = f"[{label}] "
    if coloured(target, os.environ):
        front = f"\033[{_COLOURS[index % len(_COLOURS)]}m{front}\033[0m"

    def copy() -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                text = line.decode(errors="replace").rstrip("\r\n")
                with lock:
                    target.write(f"{front}{text}\n")
                    target.flush()
                if isinstance(target.error, BrokenPipeError):
                    return

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread

"""The lines of several processes on one terminal, each with its process in front."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

__all__ = ["coloured", "passing_on"]

_COLOURS = (36, 33, 32, 35, 34, 31)  # of ANSI: cyan first, red last


def coloured(stream: Any, variables: Mapping[str, str]) -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set."""
    plain = variables.get("NO_COLOR") or variables.get("TERM") == "dumb"
    return not plain and stream.isatty()


def passing_on(target: Any, lock: threading.Lock) -> Callable[..., threading.Thread]:
    """Make a function that starts to pass on the lines of a pipe, in a thread.

    Args:
      target: stdout or stderr of this process.
      lock: that keeps lines whole.

    Returns:
      `pass_on(pipe, label, index, gone)`; `gone()` is called where nobody reads.
    """
    in_colour = coloured(target, os.environ)

    def pass_on(
        pipe: IO[bytes], label: str, index: int, gone: Callable[[], None]
    ) -> threading.Thread:
        front = f"[{label}] "
        if in_colour:
            front = f"\033[{_COLOURS[index % len(_COLOURS)]}m{front}\033[0m"

        def copy() -> None:
            for line in pipe:
                text = front + line.decode(errors="replace").rstrip("\r\n") + "\n"
                try:
                    with lock:
                        target.write(text)
                        target.flush()
                except (BrokenPipeError, ValueError):
                    gone()
                    return

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        return thread

    return pass_on

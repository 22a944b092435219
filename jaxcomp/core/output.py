"""What a process tells: its output, which may be lost, and when it made progress."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Output:
    """A stream of text that keeps its first error instead of raising it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None
        self.lost: Callable[[Exception], object] = lambda error: None  # is told of it

    def write(self, text: str) -> int:
        """Write what can be written; characters that the stream has not become `?`."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        known = text.encode(encoding, "replace").decode(encoding)
        self._noted(lambda: self._stream.write(known))
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        self._noted(self._stream.flush)

    def _noted(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            if not self.error:
                self.error = error
                self.lost(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def as_output(stream: Any) -> Any:
    """The stream itself if it is an `Output`, else one around it."""
    return stream if isinstance(stream, Output) else Output(stream)


def open_closed() -> None:
    """Let standard streams that are closed, as by `>&-`, be the null device.

    Otherwise a file that is opened later takes the number of the stream, and gets what
    libraries print there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            setattr(sys, name, os.fdopen(number, mode))


PROGRESS = "JAXCOMP_PROGRESS"  # the environment variable with its path


def mark_progress() -> None:
    """Touch the file, if a supervisor has named one.

    Example:
      >>> mark_progress()
    """
    path = os.environ.get(PROGRESS)
    if path:
        Path(path).touch()

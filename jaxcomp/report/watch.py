"""Keep the report of a run current while the run goes on."""

import time
from collections.abc import Callable
from pathlib import Path

from jaxcomp.report.endings import ending
from jaxcomp.report.html import write_report
from jaxcomp.report.run_folder import read_any
from jaxcomp.runs.errors import RunError

__all__ = ["watch"]

_SECONDS = 2.0  # between two looks at the folder
_REFRESH = 5  # seconds after which an open page loads itself again


def watch(
    folder: Path,
    say: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write the report again whenever a table of the run has grown.

    Ends when the run does, or with Ctrl-C; the page then no longer loads itself again.

    Args:
      folder: of the run, which may have to begin yet.
      say: shows a line.
      sleep: waits for so many seconds.

    Raises:
      RunError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunError(f"no run folder at {folder}: expected a folder of a trainer")
    seen: object = None
    line = ""
    try:
        while not (line and ending(read_any(folder)).kind != "unfinished"):
            now = _state(folder)
            if now == seen:
                sleep(_SECONDS)
                continue
            first, seen = seen is None, now
            try:
                path = write_report(folder, refresh=_REFRESH)
            except RunError as error:
                if line:  # it was there, and somebody has broken it
                    raise
                if first:
                    say(f"waiting: {error}")
                continue
            if not line:
                line = f"{path} is kept current until the run ends; Ctrl-C stops this"
                say(line)
    except KeyboardInterrupt:
        pass
    if line:
        say(f"{write_report(folder)}")


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """What changes when a run writes: the sizes and times of its tables."""
    found = []
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.json")]):
        about = path.stat()
        found.append((path.name, about.st_size, about.st_mtime_ns))
    return found

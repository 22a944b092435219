"""Write a report, and again while a run goes on."""

import os
import time
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from jaxcomp.core.files import write_atomically
from jaxcomp.report.comparison import (
    comparison_plots,
    find_runs,
    render_comparison,
)
from jaxcomp.report.figures import group_runs
from jaxcomp.report.graph import graph_of
from jaxcomp.report.page import write_picture
from jaxcomp.report.run_folder import ending, holder, read_run
from jaxcomp.report.run_page import render_run, run_plots
from jaxcomp.runs.folder import RunError

_ID = "note"  # of the element that holds it


class _Reader(HTMLParser):
    """Collects the text of one element, which holds no others."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_inside = ("id", _ID) in attrs

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.text.append(data)


def kept_note(page: Path) -> str:
    """The note on a page that was written before; "" without a page or a note.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page = Path(folder, "comparison.html")
      ...     _ = page.write_text('<p id="note">a &lt; b</p><p>other</p>')
      ...     kept_note(page), kept_note(page.with_name("none.html"))
      ('a < b', '')
    """
    if not page.is_file():
        return ""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8", errors="replace"))
    return "".join(reader.text)


def write_report(folder: str | os.PathLike[str], refresh: int = 0) -> Path:
    """Write `report.html` into a run folder.

    Args:
      folder: of the run.
      refresh: seconds after which the page loads itself again; 0 for never.

    Returns:
      The written file. An older report is replaced in one step: whoever opens it
      meanwhile sees the old page or the new one.

    Raises:
      RunError: the folder holds no run with a finished epoch.
    """
    path = Path(folder) / "report.html"
    write_atomically(path, render_run(read_run(folder), refresh))
    return path


def write_comparison(
    folders: Sequence[Path], file: Path, title: str = "", note: str | None = None
) -> Path:
    """Write a page of several runs.

    Args:
      folders: of runs. Those that cannot be read are named on the page.
      file: the page, which is replaced in one step.
      title: of the page; "" for one that counts the runs.
      note: shown at the top. None keeps that of the page which is replaced.

    Returns:
      The written file.

    Raises:
      RunError: no folder holds a run.
    """
    found = find_runs([Path(folder) for folder in folders])
    if note is None:
        note = kept_note(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render_comparison(found, title, note))
    return file


def write_pictures(folders: Sequence[Path], target: Path) -> list[Path]:
    """Write each plot of one run, or of several that are compared, as an SVG file.

    Args:
      folders: of the runs.
      target: made where it is missing; what is there stays, or is replaced.

    Returns:
      The written files.
    """
    found: dict[str, Any] = {}
    if len(folders) == 1:
        run = read_run(folders[0])
        found |= run_plots(run)
        graph = graph_of(run.environment.get("graph") or {}, holder([run]))
        found |= {"graph": graph} if graph else {}
    else:
        found |= comparison_plots(group_runs(find_runs(folders).runs))
    paths = [target / f"{name}.svg" for name in found]
    for path, what in zip(paths, found.values(), strict=True):
        write_picture(path, what)
    return paths


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
        while not (line and ending(read_run(folder)).kind != "unfinished"):
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

"""Write pages: of one run, and of several. Each is one HTML file without any other."""

import os
from collections.abc import Sequence
from pathlib import Path

from jaxcomp.files import write_atomically
from jaxcomp.report.comparison import find_runs, render_comparison
from jaxcomp.report.note import kept_note
from jaxcomp.report.run_folder import is_convex, read_any
from jaxcomp.report.run_page import render_run
from jaxcomp.runs.errors import RunError

__all__ = ["write_comparison", "write_report"]


def write_report(*folders: str | os.PathLike[str], refresh: int = 0) -> Path:
    """Write `report.html` into a run folder.

    Args:
      *folders: the folder of one run, or of several convex runs. The first one gets
        the page.
      refresh: seconds after which the page loads itself again; 0 for never.

    Returns:
      The written file. An older report is replaced in one step: whoever opens it
      meanwhile sees the old page or the new one.

    Raises:
      RunError: a folder holds no run with a finished epoch or evaluation, or the runs
        do not fit on one page.
    """
    first, *others = folders
    path = Path(first) / "report.html"
    if others:
        if not all(is_convex(folder) for folder in folders):
            raise RunError(
                f"got {len(folders)} folders, and a report shows one run: for several, "
                f"use jaxcomp compare"
            )
        found = find_runs([Path(folder) for folder in folders])
        write_atomically(path, render_comparison(found))
    else:
        write_atomically(path, render_run(read_any(first), refresh))
    return path


def write_comparison(
    folders: Sequence[Path], file: Path, title: str = "", note: str | None = None
) -> Path:
    """Write a page of several runs.

    Args:
      folders: of runs, of one kind. Those that cannot be read are named on the page.
      file: the page, which is replaced in one step.
      title: of the page; "" for one that counts the runs.
      note: shown at the top. None keeps that of the page which is replaced.

    Returns:
      The written file.

    Raises:
      RunError: no folder holds a run, or they hold convex and other runs.
    """
    found = find_runs([Path(folder) for folder in folders])
    if note is None:
        note = kept_note(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render_comparison(found, title, note))
    return file

"""The frame around every run: its locked folder, signals and the display."""

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp.errors import RunFailed
from jaxcomp.files import sync
from jaxcomp.parallel.cluster import find_cluster
from jaxcomp.processes import on_all_processes
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import CHANGEABLE, check_workdir, note_fact, open_folder
from jaxcomp.runs.interrupt import catch_signals
from jaxcomp.runs.lock import locked
from jaxcomp.runs.progress import Display, display
from jaxcomp.runs.shared import check_shared
from jaxcomp.runs.units import bytes_text, times_fewer

__all__ = ["Frame", "closing_lines", "framed", "traffic_line"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EIO)


class Frame(NamedTuple):
    """What the frame gives to a run."""

    folder: Path
    show: Display
    caught: Callable[[], int | None]  # the signal that came, if any
    writes: bool  # whether this process writes; the others compute only
    # To be called by it before it saves: keeps the lock, and the rows through a power
    # cut, so that a checkpoint never has steps that the tables lack.
    secure: Callable[[], None]


@contextlib.contextmanager
def framed(
    workdir: str | os.PathLike[str],
    config: Any,
    facts: dict[str, Any],
    total: int,
    changeable: Mapping[str, str] = CHANGEABLE,
) -> Iterator[Frame]:
    """Open the folder of a run and hold it until the run ends.

    Args:
      workdir: empty or absent for a new run; else one that holds a run of this config.
      config: of the run, plain values.
      facts: what else environment.json says, such as the method in full.
      total: steps of the run.
      changeable: keys of the config that may differ from the folder's.

    Raises:
      RunError: the folder cannot be used, or is full; what stands in it stays.
    """
    if not jax.distributed.is_initialized():
        find_cluster(os.environ)  # refuses processes that would each run alone
    first = jax.process_index() == 0
    with contextlib.ExitStack() as stack:

        def enter() -> tuple[Path, Callable[[], None]]:
            folder = check_workdir(workdir, make=first)
            if not first:
                return folder, lambda: None
            hold = stack.enter_context(locked(folder))
            open_folder(folder, config, facts, changeable)
            note_fact(folder, "failed", None)  # it is tried again
            return folder, hold

        def secure() -> None:
            hold()
            for path in (*folder.glob("*.csv"), folder):
                sync(path)

        def note_lost(error: Exception) -> None:
            with contextlib.suppress(OSError):  # perhaps on the same full disk
                note_fact(folder, "output_lost", str(error))

        try:
            folder, hold = on_all_processes(enter)
            check_shared(folder)
            caught = stack.enter_context(catch_signals())
            show = stack.enter_context(display(total, note_lost, quiet=not first))
            show.say(f"run folder: {folder}")
            yield Frame(folder, show, caught, first, secure)
        except Exception as error:
            problem = _why_unwritable(error)
            if not problem:
                if first and isinstance(error, RunFailed):
                    # The report knows only what the folder says.
                    note_fact(Path(workdir), "failed", str(error))
                raise
            message = (
                f"{workdir} cannot be written: {problem}. Make room, or take another "
                "--workdir; what is there stays, and the same command goes on from "
                "the newest whole checkpoint"
            )
            raise RunError(message) from error


def _why_unwritable(error: Exception) -> str:
    """The file system's message, if an error is about a folder that is not writable."""
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"{error.strerror} ({error.filename or 'while writing'})"
    # orbax, and other processes, pass it on as text.
    return next((text for text in map(os.strerror, _FULL) if text in str(error)), "")


def traffic_line(
    nbytes: tuple[float, float, float], steps: int, *, moved: bool, whom: str = "it"
) -> str:
    """What each worker sent in a run, for `closing_lines`.

    Args:
      nbytes: of its messages; that left it, NaN where that was not recorded from the
        beginning; and that would have left it with `exact`.
      steps: of the run.
      moved: False for simulated workers.
      whom: what the bytes left.

    Example:
      >>> print(traffic_line((1e6, 3e6, 6e7), 9, moved=True))
      messages of 1 MB in 9 steps; 3 MB left it, 20 times fewer than the 60 MB of exact
    """
    sent, left, exact = nbytes
    less = times_fewer(exact, left)
    if math.isnan(left):
        gone = f"what left {whom} was not recorded from the beginning"
    else:
        gone = f"{bytes_text(left)} {'left' if moved else 'would have left'} {whom}"
    if not math.isnan(less):
        gone += f", {less:.3g} times fewer than the {bytes_text(exact)} of exact"
    return f"messages of {bytes_text(sent)} in {steps} steps; {gone}"


def closing_lines(
    lines: Mapping[str, str], folder: Path, page: Path | None = None
) -> str:
    """The end of a run of any kind, a line for each figure.

    Example:
      >>> print(closing_lines({"accuracy": "98 %"}, Path("a"), Path("a/report.html")))
      accuracy       98 %
      run folder     a
      report         a/report.html
    """
    whole = {**lines, "run folder": folder} | ({"report": page} if page else {})
    width = max(14, *map(len, whole))
    return "\n".join(f"{name:{width}} {text}" for name, text in whole.items())

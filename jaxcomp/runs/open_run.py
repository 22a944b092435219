"""A run from its start to its end: the locked folder, signals, kept programs."""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxcomp.core.errors import RunFailed, UserError
from jaxcomp.core.files import expanded, sync
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.cluster import find_cluster
from jaxcomp.runs.display import Display, display
from jaxcomp.runs.folder import RunError, check_workdir, note_fact, open_folder
from jaxcomp.runs.lock import check_shared, locked


class Interrupted(Exception):
    """The run was told to stop; it has saved its state and can go on."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum  # a shell expects 128 + signum as exit code


@contextlib.contextmanager
def catch_signals() -> Iterator[Callable[[], int | None]]:
    """Yield a function that tells which signal came, if any.

    With several processes the answer is the same on all of them, because they stop at
    the same step or wait for each other for ever; all must ask at the same steps. A
    second signal falls through to the usual behaviour, for people in a hurry.
    """
    caught: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        caught.append(number)
        restore()

    def agreed() -> int | None:
        mine = caught[0] if caught else 0
        if jax.process_count() == 1:
            return mine or None
        return int(np.max(multihost_utils.process_allgather(np.int32(mine)))) or None

    for number in signals:
        signal.signal(number, handle)
    try:
        yield agreed
    finally:
        restore()


_FOLDER = "~/.cache/jaxcomp/programs"
_LEAST = "persistent_cache_min_compile_time_secs"


def keep_programs() -> str:
    """Let jax keep every compiled program; call it before the first is compiled.

    jax's own settings come first: JAX_COMPILATION_CACHE_DIR names another folder, and
    JAX_ENABLE_COMPILATION_CACHE=0 keeps nothing.

    Returns:
      Where programs are kept, as a line for the console.
    """
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return "compiled programs are not kept: JAX_ENABLE_COMPILATION_CACHE is off"
    folder = settings.jax_compilation_cache_dir
    if folder is None:
        try:
            path = expanded(_FOLDER)
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, UserError) as error:
            return (
                f"compiled programs are not kept: {error}. "
                "JAX_COMPILATION_CACHE_DIR names another folder"
            )
        folder = str(path)
        settings.update("jax_compilation_cache_dir", folder)
    if f"JAX_{_LEAST.upper()}" not in os.environ:
        settings.update(f"jax_{_LEAST}", 0.0)  # by default the short ones are lost
    return f"compiled programs are kept in {folder}"


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
def open_run(
    workdir: str | os.PathLike[str], config: Any, facts: dict[str, Any], total: int
) -> Iterator[Frame]:
    """Open the folder of a run and hold it until the run ends.

    Args:
      workdir: empty or absent for a new run; else one that holds a run of this config.
      config: of the run, plain values.
      facts: what else environment.json says, such as the method in full.
      total: steps of the run.

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
            open_folder(folder, config, facts)
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

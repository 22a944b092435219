"""The frame around every run: its locked folder, signals and the display."""

import contextlib
import datetime
import errno
import fcntl
import math
import os
import platform
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from jaxcomp.core.errors import RunFailed, UserError, within
from jaxcomp.core.files import expanded, sync
from jaxcomp.core.output import as_output
from jaxcomp.core.units import bytes_text, times_fewer
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.cluster import find_cluster, texts_of_all
from jaxcomp.runs.folder import (
    RunError,
    check_workdir,
    note_fact,
    open_folder,
)


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


LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Lock a folder, or raise an error that names the process that has locked it.

    Args:
      folder: that exists.

    Yields:
      A function that locks it again if somebody has removed the file meanwhile.

    Raises:
      RunError: another process holds it; names its host and pid.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with locked(Path(folder)):
      ...         print((Path(folder) / LOCK).read_text().split()[2])
      process
    """
    path = folder / LOCK
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    owner = f"held by process {os.getpid()} on {socket.gethostname()} since {since}\n"
    held: list[int] = []

    def hold() -> None:
        # A file that was removed is still locked, and the next run makes another one.
        while not held or not _is_at(path, held[-1]):
            held.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            _take(held[-1], folder)
            os.ftruncate(held[-1], 0)
            os.write(held[-1], owner.encode())

    def keep() -> None:
        with within(f"{path} was removed while this run held it"):
            hold()

    try:
        hold()
        yield keep
    finally:
        for descriptor in held:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            owner = os.read(descriptor, 1000).decode(errors="replace").strip()
            message = (
                f"{folder} is {owner or 'held by another process'}. Wait for that run, "
                "end it, or take another --workdir"
            )
        else:
            message = (
                f"{folder} cannot be locked ({error.strerror}): take a --workdir on a "
                "file system with locks, such as a local disk"
            )
        raise RunError(message) from None


_ANSWER_SECONDS = 60
_SEEN_SECONDS = 10  # a network file system may show a new file late


def check_shared(folder: Path, seconds: float = _SEEN_SECONDS) -> None:
    """Refuse a folder that not all processes share, by a file of the first process.

    Otherwise each host would wait for ever for what the others write elsewhere.

    Args:
      folder: as this process names it.
      seconds: after which the file should be there.

    Raises:
      RunError: names the folder and the host that does not see the file.
    """
    if jax.process_count() == 1:
        return
    is_first = jax.process_index() == 0
    offer = f"{secrets.token_hex(8)} {platform.node()}" if is_first else ""
    token, host = texts_of_all(offer, _ANSWER_SECONDS)[0].split(" ", 1)
    path = folder / f".shared-{token}"  # a new name, which no host has looked for

    def look() -> None:
        until = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > until:
                raise RunError(
                    f"--workdir={folder} on {platform.node()} is not the folder of "
                    f"process 0 on {host}: all processes need one that they share, "
                    "such as on a network file system, under the same path"
                )
            time.sleep(0.05)

    try:
        on_all_processes(path.touch if is_first else lambda: None)
        on_all_processes(look)
    finally:
        if is_first:
            path.unlink(missing_ok=True)


class Display(NamedTuple):
    """The functions by which a run writes to the console."""

    say: Callable[[str], None]  # a line that stays
    step: Callable[[int, str], None]  # steps done, short status


@contextlib.contextmanager
def display(
    total: int, lost: Callable[[Exception], object], *, quiet: bool = False
) -> Iterator[Display]:
    """A live progress bar on a terminal; plain lines where there is none.

    Args:
      total: steps of the run.
      lost: called once, where a line cannot be written; nothing is raised.
      quiet: print nothing, as on processes other than the first.
    """
    if quiet:
        yield Display(lambda line: None, lambda done, status: None)
        return
    out = as_output(sys.stdout)  # rich ends a program whose reader has left
    out.lost = lost
    console = Console(file=out, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("", total=total)

        def step(done: int, status: str) -> None:
            bar.update(task, completed=done, description=status)

        def say(line: str) -> None:
            console.print(line, markup=False)

        yield Display(say, step)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr for each of several tasks; nothing where there is no terminal.

    Returns:
      A function from a task's name, what is done and the whole, 0 if that is not known.
    """
    console = Console(stderr=True)
    live = console.is_terminal
    with Progress(console=console, transient=True, disable=not live) as shown:
        tasks: dict[str, TaskID] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = shown.add_task(task)
            shown.update(tasks[task], completed=done, total=total or None)

        yield report


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
    workdir: str | os.PathLike[str],
    config: Any,
    facts: dict[str, Any],
    total: int,
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

"""Who may write into the folder of a run, and who sees it."""

import contextlib
import datetime
import errno
import fcntl
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from jaxcomp.core.errors import within
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.cluster import texts_of_all
from jaxcomp.runs.folder import RunError

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

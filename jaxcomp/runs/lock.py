"""One process at a time in a run folder.

The lock is `flock` on the file `.lock`, which says who holds it. The kernel gives it
back when its process ends, whatever ends it, so that nothing stale is left to remove.
On a network file system it needs one that locks for all of its hosts, as NFS 4 does;
where there are no locks at all the folder is refused.
"""

import contextlib
import datetime
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxcomp.errors import within
from jaxcomp.runs.errors import RunError

__all__ = ["LOCK", "locked"]

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

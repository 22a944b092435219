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
from collections.abc import Iterator
from pathlib import Path

from jaxcomp.runs.errors import RunError

__all__ = ["LOCK", "locked"]

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, or raise an error that names the process that has locked it.

    Args:
      folder: that exists.

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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, folder)
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        owner = f"held by process {os.getpid()} on {socket.gethostname()} since {since}"
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{owner}\n".encode())
        yield
    finally:
        os.close(descriptor)


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

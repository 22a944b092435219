"""Fetch one file over HTTP, and give up soon when the host cannot be reached."""

import hashlib
import http.client
import queue
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .builders import Progress
from .dataset import DataError

__all__ = ["fetch"]

BLOCK = 2**18
# Seconds. The wait for one packet, and the wait for the first answer as a whole:
# looking a name up has no timeout of its own, and a host may have several addresses
# that are tried in turn.
STALL = 8.0
DEADLINE = 12.0


def fetch(
    url: str,
    target: Path,
    *,
    md5: str,
    progress: Progress,
    deadline: float = DEADLINE,
) -> None:
    """Download a file and check its MD5.

    Args:
      url: http or https address.
      target: file to write.
      md5: the published checksum.
      progress: called with bytes done and total (0 when the host does not say).
      deadline: seconds until the host must have answered.

    Raises:
      DataError: the host cannot be reached, the transfer breaks off or stalls, or
        the content is another one.
    """
    digest = hashlib.md5(usedforsecurity=False)
    done = total = 0
    try:
        with _open(url, deadline) as response, target.open("wb") as stream:
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(BLOCK):
                stream.write(block)
                digest.update(block)
                done += len(block)
                progress(f"downloading {target.name}", done, total)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        arrived = f" after {done:,} bytes" if done else ""
        raise DataError(f"could not download {url}{arrived}: {reason}") from error
    if digest.hexdigest() != md5:
        raise DataError(
            f"{url} sent {done:,} of {max(total, done):,} bytes with MD5 "
            f"{digest.hexdigest()}, expected {md5}"
        )


def _open(url: str, deadline: float) -> Any:
    """`urlopen` in a thread of its own, so that the wait as a whole is bounded."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=min(STALL, deadline)))
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # "404" and its like are responses too, still open
            answers.put(error)

    # A daemon: a look-up that hangs must not keep the process alive.
    threading.Thread(target=ask, daemon=True, name="jaxcomp-download").start()
    try:
        answer = answers.get(timeout=deadline)
    except queue.Empty:
        raise TimeoutError(f"no answer within {deadline:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer

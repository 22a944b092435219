"""Download a file over HTTP, with a timeout for hosts that do not answer."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from .archives import checksum
from .builders import Progress
from .dataset import DataError

__all__ = ["fetch"]

BLOCK = 2**18
TIMEOUT = 12.0  # seconds without data from the host


def fetch(
    url: str,
    target: Path,
    *,
    md5: str,
    progress: Progress,
    timeout: float = TIMEOUT,
) -> None:
    """Download a file and check its MD5.

    Args:
      url: http or https address.
      target: file to write.
      md5: the published checksum.
      progress: called with bytes done and total, which is 0 if it is not known.
      timeout: seconds without data from the host, at the start or later.

    Raises:
      DataError: the host cannot be reached, the transfer stops, or the content has
        another checksum.
    """
    done = total = 0
    try:
        with (
            urllib.request.urlopen(url, timeout=timeout) as response,
            target.open("wb") as stream,
        ):
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(BLOCK):
                stream.write(block)
                done += len(block)
                progress(f"downloading {target.name}", done, total)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # an HTTP error such as 404 holds an open response
        reason = getattr(error, "reason", None) or error
        arrived = f" after {done:,} bytes" if done else ""
        raise DataError(f"could not download {url}{arrived}: {reason}") from error
    if (actual := checksum(target)) != md5:
        raise DataError(
            f"{url} sent {done:,} of {max(total, done):,} bytes with MD5 {actual}, "
            f"expected {md5}"
        )

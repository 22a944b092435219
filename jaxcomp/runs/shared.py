"""Whether all processes see the same run folder."""

import platform
import secrets
import time
from pathlib import Path

import jax

from jaxcomp.parallel import texts_of_all
from jaxcomp.processes import on_all_processes
from jaxcomp.runs.errors import RunError

__all__ = ["check_shared"]

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

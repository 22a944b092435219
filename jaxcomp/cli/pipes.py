"""Commands whose output nobody reads to its end, as in `| head`."""

import os
import sys
from collections.abc import Callable

__all__ = ["quietly"]


def quietly(command: Callable[[], int]) -> int:
    """Run a command; where its reader has left, end without a word.

    Args:
      command: returns the exit code.

    Returns:
      That code; 141 where the reader has left, as of a process that SIGPIPE ends.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # later nobody could catch that the reader has left
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141

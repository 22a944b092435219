"""How commands end: user errors are one message, a closed pipe is none."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxcomp.errors import UserError

__all__ = ["add_command", "quietly", "told"]


def add_command(
    subparsers: Any, name: str, run: Callable[[Any], int], **texts: str
) -> argparse.ArgumentParser:
    """Add a command to the `jaxcomp` command line.

    Args:
      subparsers: what `ArgumentParser.add_subparsers` returned.
      name: of the command.
      run: from the parsed arguments to the exit code.
      **texts: its help, description and epilog.
    """
    shown = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(name, formatter_class=shown, **texts)

    def ended(args: Any) -> int:
        return told(f"jaxcomp {name}", lambda: run(args), (UserError, OSError))

    parser.set_defaults(run=ended)
    return parser


def told(
    program: str,
    command: Callable[[], int],
    mistakes: tuple[type[Exception], ...] = (UserError,),
) -> int:
    """Run a command; print an error of the user as one message, without a traceback.

    Args:
      program: that tells it.
      command: returns the exit code.
      mistakes: the errors that are told.
    """
    try:
        return command()
    except BrokenPipeError:
        raise  # `quietly` knows what to do
    except mistakes as error:
        print(f"{program}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def quietly(command: Callable[[], int]) -> int:
    """Run a command; end silently if its output is no longer read, as in `| head`.

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

"""How commands end: user errors are one line, a closed pipe is none."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from jaxcomp.errors import UserError

__all__ = ["Parser", "add_command", "quietly", "told"]


class Misuse(UserError):
    """Words of a command line that its parser does not take."""

    def __init__(self, program: str, message: str) -> None:
        super().__init__(message)
        self.program = program


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose every command takes --debug."""

    def __init__(self, *args: Any, **options: Any) -> None:
        shown = argparse.RawDescriptionHelpFormatter
        options = {"formatter_class": shown, "allow_abbrev": False, **options}
        super().__init__(*args, **options)
        about = "show where in the program an error came from"
        hidden = argparse.SUPPRESS  # a command would undo what stands before its name
        self.add_argument("--debug", action="store_true", default=hidden, help=about)

    def error(self, message: str) -> NoReturn:
        raise Misuse(self.prog, message)


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
        debug = getattr(args, "debug", False)
        mistakes = (UserError, OSError)
        return told(f"jaxcomp {name}", lambda: run(args), mistakes, debug=debug)

    parser.set_defaults(run=ended)
    return parser


def told(
    program: str,
    command: Callable[[], int],
    mistakes: tuple[type[Exception], ...] = (UserError,),
    *,
    debug: bool = False,
) -> int:
    """Run a command; print an error of the user as one message, without a traceback.

    Args:
      program: that tells it.
      command: returns the exit code.
      mistakes: the errors that are told.
      debug: whether the traceback is printed too.
    """
    try:
        return command()
    except BrokenPipeError:
        raise  # `quietly` knows what to do
    except mistakes as error:
        if debug:
            traceback.print_exc()
        print(f"{getattr(error, 'program', program)}: {error}", file=sys.stderr)
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

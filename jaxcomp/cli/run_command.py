"""How commands end: user errors are one line, and lost output is an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jaxcomp.core.errors import UserError
from jaxcomp.core.output import Output, as_output, open_closed


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
    except mistakes as error:
        if debug:
            traceback.print_exc()
        print(f"{getattr(error, 'program', program)}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def quietly(command: Callable[[], int]) -> int:
    """Run a command to its end, also where its output cannot be written.

    Args:
      command: returns the exit code.

    Returns:
      That code. Where it is 0 and output was lost: 141 if the reader has left, as in
      `| head`, like a process that SIGPIPE ends; 1 for any other reason, which is told.
    """
    open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams = [as_output(stream) for stream in before]
    try:
        code = _unless_lost(command(), streams)
    except SystemExit as left:  # of argparse, after --help
        left.code = _unless_lost(left.code or 0, streams)
        raise
    finally:
        sys.stdout, sys.stderr = before
    joining = sys.modules.get("jaxcomp.parallel.peers")
    if joining and joining.is_deserted():  # the end of Python would wait for nobody
        os._exit(code)
    return code


def _unless_lost(code: Any, streams: Sequence[Output]) -> Any:
    for stream in streams:
        stream.flush()
    error = next((stream.error for stream in streams if stream.error), None)
    if error is None:
        return code
    has_left = isinstance(error, BrokenPipeError)
    if not has_left:
        print(f"jaxcomp: the output is not whole: {error}", file=sys.stderr, flush=True)
    for stream in streams:
        if stream.error:  # the end of Python would flush it again, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code or (141 if has_left else 1)

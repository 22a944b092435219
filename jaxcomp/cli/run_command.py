"""How commands end: user errors are one line, and lost output is an exit code."""

import argparse
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
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
    subparsers: Any, name: str, run: Callable[[Any], int], **options: Any
) -> argparse.ArgumentParser:
    """Add a command to the `jaxcomp` command line.

    Args:
      subparsers: what `ArgumentParser.add_subparsers` returned.
      name: of the command.
      run: from the parsed arguments to the exit code; `--help` shows its docstring,
        with the flags after the first paragraph.
      **options: of the parser.
    """
    about, _, more = (inspect.getdoc(run) or "").partition("\n\n")
    shown = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        name, formatter_class=shown, description=about, epilog=more, **options
    )
    parser.set_defaults(run=run)
    return parser


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells below each other; only the last column may end early.

    Example:
      >>> print(aligned([("sign", "one bit"), ("top_k", "the largest")]))
      sign   one bit
      top_k  the largest
    """
    kept = list(rows)
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    lines = (map(str.ljust, row, widths) for row in kept)
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def run_command(
    program: str,
    command: Callable[[], int],
    mistakes: tuple[type[Exception], ...] = (UserError, OSError),
    *,
    debug: bool = False,
) -> int:
    """Run a command to its end, also where its output cannot be written.

    An error of the user is printed as one message, without a traceback.

    Args:
      program: that tells errors.
      command: returns the exit code.
      mistakes: the errors that are told.
      debug: whether the traceback is printed too.

    Returns:
      That code. Where it is 0 and output was lost: 141 if the reader has left, as in
      `| head`, like a process that SIGPIPE ends; 1 for any other reason, which is told.
    """
    open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams = [as_output(stream) for stream in before]
    try:
        return _unless_lost(_told(program, command, mistakes, debug), streams)
    except SystemExit as left:  # of argparse, after --help
        left.code = _unless_lost(left.code or 0, streams)
        raise
    finally:
        sys.stdout, sys.stderr = before


def _told(
    program: str,
    command: Callable[[], int],
    mistakes: tuple[type[Exception], ...],
    debug: bool,
) -> int:
    try:
        return command()
    except BaseException as error:
        is_told = isinstance(error, mistakes)
        joined = sys.modules.get("jaxcomp.parallel.cluster")
        if debug or not is_told and joined and joined.has_others():
            traceback.print_exc()
        if is_told:
            print(f"{getattr(error, 'program', program)}: {error}", file=sys.stderr)
        code = getattr(error, "exit_code", getattr(error, "code", 1))
        if joined and not isinstance(error, KeyboardInterrupt):
            joined.leave_others(code if isinstance(code, int) else 1)
        if is_told:
            return code
        raise


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

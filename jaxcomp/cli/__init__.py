"""The `jaxcomp` command. Each command is a module that adds its own parser.

These modules import what a command needs when it runs, so that `jaxcomp --help` and the
completion of a shell are quick.
"""

import argparse
import sys
from collections.abc import Sequence

from jaxcomp._version import __version__
from jaxcomp.cli import (
    completion,
    data,
    explain,
    find_rate,
    inspect,
    launch,
    predict,
    report,
    sweep,
    topology,
    train,
)
from jaxcomp.cli.run_command import Parser, run_command

__all__ = ["COMMANDS", "main", "make_parser"]

COMMANDS = (
    train,
    launch,
    report,
    sweep,
    find_rate,
    predict,
    inspect,
    data,
    topology,
    explain,
    completion,
)
_EXAMPLES = """\
examples:
  jaxcomp train --config=default --workdir=runs/first
  jaxcomp list compressors
  jaxcomp explain 'top_k(keep=0.01) | qsgd(levels=7, damped=True)'

`jaxcomp COMMAND --help` shows the flags of a command, and examples.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="jaxcomp",
        description="Compressed gradient exchange for data-parallel training in JAX.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"jaxcomp {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    name = next((word for word in words if not word.startswith("-")), "")

    def parse_and_run() -> int:
        # Prints what `--help` asks for. Keys of a config are no flags of a parser.
        parser = make_parser()
        completion.complete(parser)
        args, others = parser.parse_known_args(words)
        if others and not hasattr(args, "takes_config_keys"):
            parser.error(f"unknown argument {others[0]!r}")
        args.config_keys = others
        return args.run(args)

    return run_command(f"jaxcomp {name}", parse_and_run, debug="--debug" in words)

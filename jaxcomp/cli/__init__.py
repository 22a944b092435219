"""The `jaxcomp` command. Each command is in a module, which adds its own parser.

Only the module of the command that runs is imported, so that `jaxcomp --help` is quick.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from jaxcomp._version import __version__
from jaxcomp.cli.completion import complete
from jaxcomp.cli.run_command import Parser, run_command

__all__ = ["COMMANDS", "main", "make_parser"]


# What adds the parser of a command, and a line about it.
COMMANDS = {
    "train": ("train:add_parser", "train a model by a config"),
    "launch": ("launch:add_parser", "start the processes of a run, here or over ssh"),
    "report": ("report:add_parser", "write report.html into a run folder"),
    "compare": ("report:add_compare", "write one page that compares several runs"),
    "sweep": ("sweep:add_parser", "train every setting of a grid once, and compare"),
    "find-rate": ("find_rate:add_parser", "try growing rates, and suggest one"),
    "predict": (
        "predict:add_parser",
        "say whether compression would help on your links",
    ),
    "inspect": ("inspect:add_parser", "compile a step for GPUs or TPUs elsewhere"),
    "data": ("data:add_parser", "prepare data sets and list them"),
    "topology": ("topology:add_parser", "show a communication graph of gossip"),
    "list": ("lists:add_parser", "list methods, models, data sets, configs, ..."),
    "explain": (
        "explain:add_parser",
        "say what a method costs, promises and goes with",
    ),
    "completion": ("completion:add_parser", "print a script that completes commands"),
}
_EXAMPLES = """\
examples:
  jaxcomp train --config=default --workdir=runs/first
  jaxcomp list compressors
  jaxcomp explain 'top_k(keep=0.01) | qsgd(levels=7, damped=True)'

`jaxcomp COMMAND --help` shows the flags of a command, and examples.
"""


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
      words: of it; other commands than theirs are known by their names alone.
    """
    parser = Parser(
        prog="jaxcomp",
        description="Compressed gradient exchange for data-parallel training in JAX.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"jaxcomp {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = None if words is None else next((w for w in words if w in COMMANDS), "")
    for name, (place, about) in COMMANDS.items():
        if asked in (None, name):
            module, _, function = place.partition(":")
            found = importlib.import_module(f"jaxcomp.cli.{module}")
            getattr(found, function)(subparsers)
        else:
            subparsers.add_parser(name, help=about)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    name = next((word for word in words if not word.startswith("-")), "")

    def parse_and_run() -> int:
        # Prints what `--help` asks for. Keys of a config are no flags of a parser.
        complete(make_parser)
        parser = make_parser(words)
        args, others = parser.parse_known_args(words)
        if others and not hasattr(args, "takes_config_keys"):
            parser.error(f"unknown argument {others[0]!r}")
        args.config_keys = others
        return args.run(args)

    return run_command(f"jaxcomp {name}", parse_and_run, debug="--debug" in words)

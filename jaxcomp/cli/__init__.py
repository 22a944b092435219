"""The `jaxcomp` command. Each command is a module that adds its own parser."""

import argparse
from collections.abc import Sequence

from jaxcomp._version import __version__
from jaxcomp.cli import compare, data, inspect, launch, report, topology
from jaxcomp.cli.ends import quietly

__all__ = ["COMMANDS", "main"]

COMMANDS = (compare, data, inspect, launch, report, topology)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="jaxcomp",
        description="Compressed gradient exchange for data-parallel training in JAX.",
        epilog="Training itself: python train.py --config=configs/default.py "
        "--workdir=runs/first",
    )
    parser.add_argument("--version", action="version", version=f"jaxcomp {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)

    def parse_and_run() -> int:
        # Prints what `--help` asks for. Keys of a config are no flags of a parser.
        args, others = parser.parse_known_args(argv)
        if others and not hasattr(args, "takes_config_keys"):
            parser.error(f"unknown argument {others[0]!r}")
        args.config_keys = others
        return args.run(args)

    return quietly(parse_and_run)

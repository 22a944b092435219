"""`jaxcomp completion`: what a shell needs to complete commands, flags and names."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from jaxcomp.cli.config import is_part, standard_configs
from jaxcomp.cli.run_command import add_command

SHELLS = ("bash", "fish", "zsh")


def add_parser(subparsers: Any) -> None:
    """Add the command `completion`; as `run_command.add_command`."""
    parser = add_command(subparsers, "completion", _run)
    parser.add_argument("shell", choices=SHELLS)


def _run(args: argparse.Namespace) -> int:
    """Print a script by which a shell completes commands, flags and names of configs.

    examples:
      jaxcomp completion bash
      jaxcomp completion bash > ~/.local/share/bash-completion/completions/jaxcomp
      jaxcomp completion zsh > ~/.zfunc/_jaxcomp
      jaxcomp completion fish > ~/.config/fish/completions/jaxcomp.fish

    The script asks this program, with the package argcomplete. For zsh, ~/.zshrc has
    `fpath+=(~/.zfunc)` before `compinit`.
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["jaxcomp"], shell=args.shell))
    return 0


def complete(make_parser: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Answer a shell that asks what may follow, and end; else do nothing.

    Args:
      make_parser: makes the parser of a command line.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        words = os.environ.get("COMP_LINE", "").split()
        argcomplete.autocomplete(with_names(make_parser(words)))


def with_names(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let the commands that take a config know the names of configs and parts."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                with_names(command)
        if "--config" in action.option_strings:
            action.completer = _configs  # type: ignore[attr-defined]
    return parser


def _configs(prefix: str, **_: Any) -> list[str]:
    """Whole configs, and parts after a comma."""
    before, comma, _last = prefix.rpartition(",")
    found = [name for name in standard_configs() if is_part(name) == bool(comma)]
    return [before + comma + name for name in found]

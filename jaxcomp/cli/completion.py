"""`jaxcomp completion`: what a shell needs to complete commands, flags and names."""

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from jaxcomp.cli.run_command import add_command

SHELLS = ("bash", "fish", "zsh")
EXAMPLE = """\
examples:
  jaxcomp completion bash
  jaxcomp completion bash > ~/.local/share/bash-completion/completions/jaxcomp
  jaxcomp completion zsh > ~/.zfunc/_jaxcomp
  jaxcomp completion fish > ~/.config/fish/completions/jaxcomp.fish

The script knows the names of this version; write it again after an update. For zsh,
~/.zshrc has `fpath+=(~/.zfunc)` before `compinit`.
"""
# In each shell: the words of the line before the last one choose a list.
_BASH = """\
_jaxcomp() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" word context list part
  word="${{line##* }}"
  context="${{COMP_WORDS[1]}}"
  case "$word" in
    --config=*,*) for part in {parts}; do list="$list ${{word%,*}},$part"; done;;
{values}
    *) case "$context" in
{commands}
      *) list={top};;
    esac;;
  esac
  [ "$COMP_CWORD" = 1 ] && list={top}
  COMPREPLY=($(compgen -W "$list" -- "$word"))
  # Bash takes `=` for the end of a word: what stands before it is there already.
  case "$word" in *=*) COMPREPLY=("${{COMPREPLY[@]#"${{word%=*}}="}}");; esac
  case "${{COMPREPLY[0]}}" in *=) compopt -o nospace;; esac
}}
complete -o default -F _jaxcomp jaxcomp
"""
_ZSH = """\
#compdef jaxcomp
local word="${{words[CURRENT]}}" list part
case "$word" in
  --config=*,*) for part in {parts}; do list="$list ${{word%,*}},$part"; done;;
{values}
  *) case "${{words[2]}}" in
{commands}
    *) list={top};;
  esac;;
esac
(( CURRENT == 2 )) && list={top}
compadd -S '' -- ${{(s: :)list}}
[[ "$word" == -* ]] || _files
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `completion`; as `ends.add_command`."""
    parser = add_command(
        subparsers,
        "completion",
        _run,
        help="print a script that completes commands in a shell",
        description="Print a script by which a shell completes commands, flags, names "
        "of configs and, after --config.KEY=, names of methods.",
        epilog=EXAMPLE,
    )
    parser.add_argument("shell", choices=SHELLS)


def _run(args: argparse.Namespace) -> int:
    from jaxcomp.cli import make_parser

    print(script(args.shell, make_parser()), end="")
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for a shell.

    Args:
      shell: one of bash, fish and zsh.
      parser: of the whole command line.
    """
    from jaxcomp.cli.standard import is_part, standard_configs

    commands, values = words(parser)
    parts = list(filter(is_part, standard_configs()))
    if shell == "fish":
        return "\n".join(_fish(commands, values, parts)) + "\n"
    template, indent = (_BASH, "      ") if shell == "bash" else (_ZSH, "    ")
    quoted = {name: shlex.quote(" ".join(found)) for name, found in commands.items()}
    top = shlex.quote(" ".join(name for name in commands if name))
    of_commands = [f"{indent}{n}) list={q};;" for n, q in quoted.items() if n]
    of_values = [
        f"{indent[2:]}{flag}=*) "
        f"list={shlex.quote(' '.join(f'{flag}={name}' for name in names))};;"
        for flag, names in values.items()
    ]
    return template.format(
        values="\n".join(of_values),
        parts=" ".join(parts),
        commands="\n".join(of_commands),
        top=top,
    )


def words(
    parser: argparse.ArgumentParser,
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What may stand on a line: by command its words, and by flag its values.

    Args:
      parser: of the whole command line; "" is the name for the line's beginning.
    """
    from jaxcomp.cli.listing import KINDS, registry_of
    from jaxcomp.cli.standard import is_part, standard_configs

    values = {"--config": [n for n in standard_configs() if not is_part(n)]}
    for kind, found in KINDS.items():
        if found.key:
            values[f"--config.{found.key}"] = sorted(registry_of(kind))
    # A longer flag comes first: patterns are tried in order.
    values = dict(sorted(values.items(), key=lambda pair: -len(pair[0])))
    commands: dict[str, list[str]] = {}
    for name, command in _commands(parser).items():
        commands[name] = sorted(_words_of(command))
        if command.get_default("takes_config_keys"):
            commands[name] += [f"{flag}=" for flag in values if flag != "--config"]
    if "list" in commands:
        commands["list"] += sorted([*KINDS, "configs"])
    return commands, values


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _words_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Flags, choices and actions of a command; a flag with a value ends in =."""
    for action in parser._actions:
        for flag in action.option_strings[-1:]:
            yield flag if action.nargs == 0 else f"{flag}="
        if not action.option_strings and action.choices:
            yield from action.choices
    for inner in _commands(parser).values():
        yield from _words_of(inner)


def _fish(
    commands: dict[str, list[str]], values: dict[str, list[str]], parts: list[str]
) -> Iterator[str]:
    """Lines of a fish script, one for each list of words."""
    top = " ".join(commands)
    first = "not __fish_seen_subcommand_from " + top
    yield f"complete -c jaxcomp -n {shlex.quote(first)} -f -a {shlex.quote(top)}"
    for name, found in commands.items():
        more = [f"{flag}={n}" for flag, names in values.items() for n in names]
        takes = any(word.startswith("--config") for word in found)
        listed = shlex.quote(" ".join([*found, *(more if takes else [])]))
        when = shlex.quote(f"__fish_seen_subcommand_from {name}")
        yield f"complete -c jaxcomp -n {when} -a {listed}"
    written = '(commandline -ct | string replace -r ",[^,]*\\$" ",")'
    composed = "string match -q -- '--config=*,*' (commandline -ct)"
    found = shlex.quote(f"{written}{{{','.join(parts)}}}")
    yield f"complete -c jaxcomp -n {shlex.quote(composed)} -f -a {found}"

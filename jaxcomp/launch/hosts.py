"""The hosts of a run, and the shell command that runs a process on one of them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxcomp.errors import UserError

__all__ = ["Host", "parse_hosts", "read_hosts", "remote_command"]


class Host(NamedTuple):
    """A machine, as ssh knows it, and the number of processes that it gets."""

    name: str
    processes: int


def parse_hosts(text: str) -> list[Host]:
    """The hosts of `--hosts`.

    Example:
      >>> parse_hosts("server0:8,me@server1")
      [Host(name='server0', processes=8), Host(name='me@server1', processes=1)]
    """
    hosts = [_host(word, word) for word in text.split(",")]
    names = [host.name for host in hosts]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"host {twice[0]!r} is named twice: write {twice[0]}:COUNT")
    return hosts


def read_hosts(path: Path) -> list[Host]:
    """The hosts of a file: one on each line, as `server0:8` or `server0 slots=8`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--hostfile={path}: {error.strerror}") from None
    kept = [line.split("#")[0].strip() for line in lines]
    words = [":".join(line.replace(" slots=", ":").split()) for line in kept if line]
    if not words:
        raise UserError(f"--hostfile={path} names no host")
    return parse_hosts(",".join(words))


def _host(word: str, shown: str) -> Host:
    name, _, count = word.strip().partition(":")
    count = count or "1"
    # A name with a dash in front would be an option of ssh.
    if not name or name.startswith("-") or not count.isdigit() or int(count) < 1:
        raise UserError(f"a host is NAME or NAME:PROCESSES, not {shown!r}")
    return Host(name, int(count))


def remote_command(
    command: Sequence[str], variables: Mapping[str, str], folder: str, grace: float
) -> str:
    """The line for a remote shell; the process ends when its standard input does.

    ssh passes no signals on. So the shell asks the process to end once the launcher
    closes the connection, or has died, and kills it later if it has not ended.

    Args:
      command: words of the program.
      variables: environment variables that it gets.
      folder: where it runs.
      grace: seconds between asking and killing.
    """
    words = [f"{name}={value}" for name, value in variables.items()]
    program = shlex.join(["env", *words, *command])
    return (
        f"cd {shlex.quote(folder)} || exit 2; exec 3<&0; "
        f"{program} </dev/null 3<&- & child=$!; "
        "{ cat <&3; kill -TERM $child; "
        f"sleep {grace:g}; kill -KILL $child; }} >/dev/null 2>&1 & watcher=$!; "
        "exec 3<&-; wait $child; code=$?; kill $watcher 2>/dev/null; exit $code"
    )

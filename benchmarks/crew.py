"""Processes that take turns: each reads lines of JSON and answers each with one."""

import contextlib
import json
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ROOT", "Crew", "start"]

ROOT = Path(__file__).resolve().parents[1]  # where `python -m benchmarks.NAME` works
_SHOWN = 2000  # characters of what a process wrote before it ended


class Crew(NamedTuple):
    """Processes that wait for their next message; they end with their input."""

    ask: Callable[..., list[Any]]  # (messages, seconds to wait) -> answers
    close: Callable[[], None]


def start(
    name: str,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str] | None = None,
) -> Crew:
    """Start one process for each command.

    Args:
      name: of the crew, for errors.
      commands: of the processes.
      environment: of all of them; default: that of this process.

    Returns:
      A crew. Its `ask` raises RuntimeError if a process ends, with what it wrote, or if
      it has not answered in time.
    """
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the crew
    crew = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for command in commands
    ]

    def ask(messages: Sequence[Any], patience: float | None = None) -> list[Any]:
        for process, message in zip(crew, messages, strict=True):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `hear` says what happened
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
        until = None if patience is None else time.monotonic() + patience
        return [hear(process, until) for process in crew]

    def hear(process: Any, until: float | None) -> Any:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            close(patience=0)
            raise RuntimeError(f"{name}: no answer in time")
        answer = process.stdout.readline()
        if not answer:
            process.wait()
            log.seek(0)
            written = log.read()[-_SHOWN:]
            close(patience=0)  # the others wait for it
            raise RuntimeError(f"{name} ended:\n{written}")
        return json.loads(answer)

    def close(patience: float = 20) -> None:
        for process in crew:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in crew:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        log.close()

    return Crew(ask, close)

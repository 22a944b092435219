"""Processes that take turns: each reads lines of JSON and answers each with one."""

import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

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


def member() -> tuple[Iterator[Any], Callable[[Any], None]]:
    """Of a process that a crew has started: what it is asked, and how it answers.

    The process ends with its input, even where it waits for the others. What it prints
    goes to its errors.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo prints, from C++
    lines: Queue[str] = Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()

    def say(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    return (json.loads(lines.get()) for _ in itertools.count()), say


def _read(lines: "Queue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)

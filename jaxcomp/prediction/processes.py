"""Exchanges between processes of this machine, timed: what a prediction leaves out.

They send over the loopback, which has no limit worth naming. What is measured is what
they compute, and what their transport does: Gloo copies and adds what it receives.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import jax

from jaxcomp.base import Spec
from jaxcomp.errors import RunFailed
from jaxcomp.launch.supervise import free_port

__all__ = ["loopback_seconds"]

_PATIENCE = 300.0  # seconds for each method, most of them to compile
_SHOWN = 2000  # characters of what a process wrote before it ended


def loopback_seconds(
    methods: Sequence[str], spec: Spec, workers: int
) -> dict[str, float]:
    """The median seconds of exchanges between so many processes of this machine.

    Args:
      methods: one line each.
      spec: of the tree.
      workers: their number; all of them share the cores.

    Raises:
      RunFailed: a process ended, or they have not answered in time.
    """
    leaves = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(spec)]
    place = {"workers": workers, "processes": workers}
    place |= {"coordinator": f"127.0.0.1:{free_port()}"}
    task = {"leaves": leaves, "methods": list(methods)}
    tasks = [task | {"place": place | {"process": rank}} for rank in range(workers)]
    answers = _asked(tasks, _PATIENCE * (1 + len(methods)))
    # Of each exchange the slowest worker counts: the others wait for it.
    steps = [zip(*each, strict=True) for each in zip(*answers, strict=True)]
    return {
        method: statistics.median(map(max, every))
        for method, every in zip(methods, steps, strict=True)
    }


def _asked(tasks: Sequence[Any], patience: float) -> list[Any]:
    """Start a process for each task; returns what they answer."""
    command = [sys.executable, "-m", "jaxcomp.prediction.worker"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        crew = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            for _ in tasks
        ]
        for process in crew:
            stack.enter_context(process)
            stack.callback(process.kill)

        def give_up() -> None:
            for process in crew:
                process.kill()

        timer = threading.Timer(patience, give_up)
        stack.callback(timer.cancel)
        timer.start()
        for process, task in zip(crew, tasks, strict=True):
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin
                process.stdin.write(json.dumps(task) + "\n")
                process.stdin.flush()
        lines = [process.stdout.readline() for process in crew if process.stdout]
        if not all(lines):
            log.seek(0)
            raise RunFailed(f"local processes ended:\n{log.read()[-_SHOWN:]}")
        return [json.loads(line) for line in lines]

"""Start a run again after a failure, and try whether it survives failures."""

import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxcomp.launch.plan import Child
from jaxcomp.launch.watch import Ended, watch
from jaxcomp.progress_file import PROGRESS

__all__ = ["Limits", "free_port", "supervise"]

# The exit codes of what only a person can mend, such as a wrong command or a full disk,
# and of a process whose output nobody reads: the same would come again.
_FINAL = (2, 141)


class Limits(NamedTuple):
    """When processes are ended, and how often they are started again."""

    grace: float  # seconds between Ctrl-C and SIGKILL
    restarts: int = 0
    stuck_after: float = 0.0  # seconds without progress of a process; 0: never
    chaos: float = 0.0  # mean seconds between random kills; 0: none
    seed: int = 0  # of the kills
    kills: int = 0  # at most; 0: any number


def supervise(plan: Callable[[], Sequence[Child]], limits: Limits) -> Ended:
    """Run processes, again after a failure; a run goes on from its checkpoint.

    Args:
      plan: makes the processes of an attempt, with a new port.
      limits: of all attempts.
    """
    strike = _killer(limits)
    ended = Ended(0, "", False)
    for attempt in range(limits.restarts + 1):
        with tempfile.TemporaryDirectory(prefix="jaxcomp-launch-") as folder:
            children = list(plan())
            marks = [Path(folder) / str(index) for index in range(len(children))]
            for index, mark in enumerate(marks):
                variables = {**children[index].variables, PROGRESS: str(mark)}
                children[index] = children[index]._replace(variables=variables)
            watched = [] if any(child.over_ssh for child in children) else marks
            ended = watch(children, limits.grace, _disturbing(watched, limits, strike))
        if not ended.code or ended.was_asked:
            return ended
        if ended.code in _FINAL:
            final = "which no restart mends: see what it says above"
            return ended._replace(why=f"{ended.why}, {final}")
        left = limits.restarts - attempt
        if left:
            message = f"{ended.why}; starting all again (restarts left: {left - 1})"
            print(f"jaxcomp launch: {message}", file=sys.stderr, flush=True)
    return ended


def _disturbing(
    marks: Sequence[Path],
    limits: Limits,
    strike: Callable[[list[subprocess.Popen[bytes]]], None],
) -> Callable[[list[subprocess.Popen[bytes]]], str]:
    """Make the function that notices stuck processes, and lets `strike` kill some."""
    began = time.time()

    def disturb(running: list[subprocess.Popen[bytes]]) -> str:
        now = time.time()
        strike([process for process in running if process.poll() is None])
        for index, mark in enumerate(marks if limits.stuck_after else ()):
            last = mark.stat().st_mtime if mark.exists() else began
            if running[index].poll() is None and now - last > limits.stuck_after:
                return f"process {index} made no progress in {now - last:.0f} s"
        return ""

    return disturb


def _killer(limits: Limits) -> Callable[[list[subprocess.Popen[bytes]]], None]:
    """Make the function that kills a random process now and then, over all attempts."""
    rng = random.Random(limits.seed)
    left = (limits.kills or float("inf")) if limits.chaos else 0

    def drawn() -> float:
        return time.time() + rng.expovariate(1 / limits.chaos) if left else 0.0

    next_kill = drawn()

    def strike(alive: list[subprocess.Popen[bytes]]) -> None:
        nonlocal left, next_kill
        if left and alive and time.time() > next_kill:
            rng.choice(alive).kill()
            left -= 1
            next_kill = drawn()

    return strike


def free_port() -> int:
    """A port of this machine on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""Run what is left of a sweep, and write down what has become of each run."""

import contextlib
import pprint
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxcomp.files import write_atomically
from jaxcomp.launch.signals import caught_signals
from jaxcomp.runs.lock import locked
from jaxcomp.sweeps.figures import Best, figures_of
from jaxcomp.sweeps.plan import Plan, Run
from jaxcomp.sweeps.processes import (
    Started,
    begin,
    end,
    exit_code,
    largest_memory,
    last_line,
)
from jaxcomp.sweeps.record import Entry, read_record, write_record

__all__ = ["Job", "Limits", "Look", "logfile", "frozen", "run_sweep", "workdir"]

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 120.0  # to save, after Ctrl-C
_TRIES = 2
_HEAD = "from math import inf, nan\n\nfrom ml_collections import ConfigDict\n\n\n"


class Job(NamedTuple):
    """A sweep and where it runs."""

    plan: Plan
    best: Best
    file: Path  # that describes the sweep
    folder: Path  # that exists
    program: Sequence[str]  # that trains, before its words


class Limits(NamedTuple):
    """What runs at the same time."""

    jobs: int
    memory: float  # bytes


class Look(NamedTuple):
    """Where a sweep stands."""

    runs: Sequence[Run]
    entries: Mapping[str, Entry]
    figures: Mapping[str, Mapping[str, float]]  # of finished runs
    running: Mapping[str, float] = MappingProxyType({})  # their seconds so far
    signum: int = 0  # of the signal that has ended it

    def entry(self, run: Run) -> Entry:
        return self.entries.get(run.name, Entry())

    @property
    def left(self) -> list[Run]:
        """The runs that have not ended; interrupted ones come first."""
        left = [run for run in self.runs if not self.entry(run).ended]
        return sorted(left, key=lambda run: self.entry(run).state == "waiting")


def workdir(job: Job, run: Run) -> Path:
    return job.folder / "runs" / run.name


def logfile(job: Job, run: Run) -> Path:
    return job.folder / "logs" / f"{run.name}.log"


def frozen(folder: Path, run: Run) -> str:
    """Write the config of a run into a folder; returns the word of train.py for it."""
    path = folder / f"{run.name}.py"
    folder.mkdir(exist_ok=True)
    values = pprint.pformat(run.config)
    write_atomically(
        path, f"{_HEAD}def get_config():\n    return ConfigDict({values})\n"
    )
    return f"--config={path}"


def run_sweep(
    job: Job,
    limits: Limits,
    *,
    retry: bool = False,
    shown: Callable[[Look], None] = lambda look: None,
    ended: Callable[[Look, Run], None] = lambda look, run: None,
    stopping: Callable[[], None] = lambda: None,
) -> Look:
    """Run each run that has not ended yet, each in a process of its own.

    A run that was interrupted goes on, because the trainer does. One that fails is
    started once more.

    Args:
      job: the sweep.
      limits: of what runs at the same time.
      retry: whether runs that have failed before are started again.
      shown: called several times a second.
      ended: called after each run that has ended.
      stopping: called when a signal has come, before the runs save and end.

    Raises:
      RunError: another process runs this sweep.
    """
    for name in ("logs", "runs"):
        (job.folder / name).mkdir(exist_ok=True)
    with locked(job.folder) as hold, caught_signals() as caught, _ending() as running:
        entries = read_record(job.folder)
        if retry:
            entries = {n: e for n, e in entries.items() if e.state != "failed"}
        look = _look(job, entries)
        while look.left and not caught:
            for run in look.left:
                if run.name not in running and _has_room(len(running), limits):
                    hold()
                    running[run.name] = _begin(job, run)
                    entry = look.entry(run)._replace(state="started", error="")
                    entries[run.name] = entry
                    write_record(job.folder, job.file, entries)
            time.sleep(_POLL_SECONDS)
            for run in _take_ended(look, running, entries):
                write_record(job.folder, job.file, entries)
                look = _look(job, entries)
                ended(look, run)
            now = time.monotonic()
            seconds = {n: now - started.began for n, started in running.items()}
            shown(look._replace(running=seconds))
        if not caught:
            return look
        stopping()
        _end_all(running, caught)
        for run in _take_ended(look, running, entries, asked=True):
            ended(_look(job, entries), run)
        write_record(job.folder, job.file, entries)
        return _look(job, entries)._replace(signum=caught[0])


def _look(job: Job, entries: Mapping[str, Entry]) -> Look:
    """Read what the finished runs have reached, and which runs follow from that."""
    figures: dict[str, Mapping[str, float]] = {}
    scores = {
        n: float("-inf") for n, entry in entries.items() if entry.state == "failed"
    }
    while True:
        runs = job.plan(scores)
        states = {run.name: entries.get(run.name, Entry()).state for run in runs}
        new = [
            r for r in runs if states[r.name] == "finished" and r.name not in figures
        ]
        if not new:
            return Look(runs, dict(entries), figures)
        for run in new:
            figures[run.name] = figures_of(workdir(job, run), job.best)
            scores[run.name] = job.best.score(figures[run.name])


def _begin(job: Job, run: Run) -> Started:
    words = frozen(job.folder / "configs", run), f"--workdir={workdir(job, run)}"
    return begin([*job.program, *words], logfile(job, run))


def _has_room(running: int, limits: Limits) -> bool:
    """Whether one more run fits; the first is alone, and shows how much one needs."""
    if not running:
        return True
    needed = largest_memory()
    return running < limits.jobs and 0 < needed * (running + 1) <= limits.memory


def _take_ended(
    look: Look,
    running: dict[str, Started],
    entries: dict[str, Entry],
    *,
    asked: bool = False,
) -> Iterator[Run]:
    """Take the processes that have ended from those that run; yield their runs."""
    for run in look.runs:
        started = running.get(run.name)
        code = started and exit_code(started)
        if started is None or code is None:
            continue
        del running[run.name]
        seconds = entries[run.name].seconds + time.monotonic() - started.began
        entry = entries[run.name]._replace(seconds=seconds)
        if code == 0:
            entry = entry._replace(state="finished", error="")
        elif not asked:
            failures = entry.failures + 1
            state = "failed" if failures >= _TRIES else "started"
            error = last_line(started.log) or f"exit code {code}"
            entry = entry._replace(state=state, failures=failures, error=error)
        entries[run.name] = entry
        yield run


def _end_all(running: Mapping[str, Started], caught: Sequence[int]) -> None:
    """Let all processes save and end; at a second signal, or in the end, kill them."""
    until = time.monotonic() + _GRACE_SECONDS
    for started in running.values():
        end(started, signal.SIGTERM)
    while any(started.process.poll() is None for started in running.values()):
        if len(caught) > 1 or time.monotonic() > until:
            for started in running.values():
                end(started, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _ending() -> Iterator[dict[str, Started]]:
    """A place for processes; those that are left at the end are killed."""
    running: dict[str, Started] = {}
    try:
        yield running
    finally:
        for started in running.values():
            end(started, signal.SIGKILL)
            started.process.wait()
            exit_code(started)

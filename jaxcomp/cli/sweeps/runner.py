"""Train the runs of a sweep, each once, through any interruption."""

import contextlib
import csv
import datetime
import io
import itertools
import json
import math
import os
import pprint
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxcomp.cli.supervise import caught_signals
from jaxcomp.cli.sweeps.reading import Plan, PlannedRun, Setting, differing
from jaxcomp.core.errors import UserError, within
from jaxcomp.core.files import write_atomically
from jaxcomp.core.specs import suggest
from jaxcomp.core.units import (
    MISSING,
    number_text,
    percent_text,
    seconds_text,
)
from jaxcomp.runs.folder import note_fact, read_json
from jaxcomp.runs.open_run import locked
from jaxcomp.runs.table import Schema, read_header, read_table

_TABLE = "metrics.csv"
_PER_STEP = "wire_bytes_per_step"


class BestValue(NamedTuple):
    """Which figure says how good a run is."""

    column: str  # of metrics.csv
    sign: int  # 1 where more is better, -1 where less is

    @property
    def key(self) -> str:
        """Its name in `figures_of`."""
        return f"best_{self.column}"

    def score(self, figures: Mapping[str, float]) -> float:
        """More is better; -inf where the figure is not known.

        Example:
          >>> Best("test_loss", -1).score({"best_test_loss": 0.25})
          -0.25
        """
        score = self.sign * figures.get(self.key, math.nan)
        return -math.inf if math.isnan(score) else score


def parse_best(text: str) -> BestValue:
    """The rule by which runs are compared.

    Example:
      >>> parse_best("min test_loss")
      Best(column='test_loss', sign=-1)
    """
    signs = {"max": 1, "min": -1}
    sign, _, column = text.partition(" ")
    if sign not in signs or not column.isidentifier():
        message = "'max' or 'min' and a column of metrics.csv, such as 'min test_loss'"
        raise UserError(f"best is {message}, not {text!r}")
    return BestValue(column, signs[sign])


def check_column(best: BestValue, columns: Sequence[str]) -> None:
    """Refuse a rule by a column that the metrics.csv of a run does not have."""
    if best.column not in columns:
        hint = suggest(best.column, columns)
        raise UserError(f"{_TABLE} has no column {best.column!r}. {hint}")


def figures_of(folder: Path, best: BestValue) -> dict[str, float]:
    """The figures of a run: `final_COLUMN`, and where it was best `best_COLUMN`.

    Args:
      folder: of the run.
      best: decides where that was.

    Raises:
      UserError: the run's metrics.csv has no such column, or cannot be read.
    """
    path = folder / _TABLE
    columns = read_header(path)
    if not columns:
        return {}
    check_column(best, columns)
    table = read_table(path, Schema(tuple(columns), ("step",)))
    if not len(table["step"]):
        return {}
    if _PER_STEP in table:
        steps = np.diff(table["step"], prepend=0)
        table["bytes_sent"] = np.cumsum(np.nan_to_num(steps * table[_PER_STEP]))
    figures = {f"final_{name}": float(values[-1]) for name, values in table.items()}
    worth = best.sign * table[best.column]
    if not np.isnan(worth).all():
        place = int(np.nanargmax(worth))
        shown = [name for name in ("epoch", "step", best.column) if name in table]
        figures |= {f"best_{name}": float(table[name][place]) for name in shown}
    return figures


RECORD = "sweep.json"


class Entry(NamedTuple):
    """How far a run is."""

    state: str = "waiting"  # started | finished | failed
    failures: int = 0
    seconds: float = 0.0  # of its processes, all together
    error: str = ""  # the last line of its log, where it has failed

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed")


def read_record(folder: Path) -> dict[str, Entry]:
    """The entries of a sweep's runs by name; none in a new folder."""
    runs: Mapping[str, Any] = read_json(folder / RECORD).get("runs", {})
    return {name: Entry(**entry) for name, entry in runs.items()}


def write_record(folder: Path, file: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the record of a sweep, whole or not at all.

    Args:
      folder: of the sweep.
      file: that describes it.
      entries: of its runs.
    """
    runs = {name: entry._asdict() for name, entry in entries.items()}
    content = {"file": str(file.resolve()), "runs": runs}
    write_atomically(folder / RECORD, json.dumps(content, indent=1))


def note_labels(folder: Path, setting: Setting) -> None:
    """Let the folder of a run say what its sweep calls it: pages call it that, too.

    Args:
      folder: of the run.
      setting: its labels, and the keys of the config that they stand for.
    """
    if setting.labels:
        keys = sorted(setting.meant)
        note_fact(folder, "sweep", {"labels": dict(setting.labels), "keys": keys})


def find_folder(file: Path, out: Path | None, root: Path = Path("output")) -> Path:
    """The folder of a sweep: where it was begun, or else a new one with today's date.

    Args:
      file: that describes the sweep.
      out: the folder, where somebody has named it.
      root: below which others are.

    Raises:
      UserError: the folder that was named holds other things.

    Example:
      >>> str(find_folder(Path("a/digits.py"), Path("mine")))
      'mine'
    """
    if out is not None:
        if out.is_dir() and any(out.iterdir()) and not (out / RECORD).exists():
            message = f"{out} holds other things than a sweep: take a folder of its own"
            raise UserError(message)
        return out
    whole = str(file.resolve())
    begun = [p for p in root.glob(f"*/{RECORD}") if read_json(p).get("file") == whole]
    mine = [p.parent for p in begun if p.parent.name.startswith(f"{file.stem}-")]
    if mine:
        end = len(file.stem) + 11  # of the date; others of it have numbers
        return max(mine, key=lambda it: (it.name[:end], len(it.name), it.name))
    new = f"{file.stem}-{datetime.date.today().isoformat()}"
    names = itertools.chain([new], (f"{new}-{n}" for n in itertools.count(2)))
    return next(root / name for name in names if not (root / name).exists())


_SHOWN = 4000  # bytes at the end of a log


class Started(NamedTuple):
    """A run's process."""

    process: subprocess.Popen[bytes]
    log: Path
    began: float  # of time.monotonic


def begin(command: Sequence[str], log: Path) -> Started:
    """Start a process in a session of its own, so that Ctrl-C comes from here alone.

    Its input is a pipe that nobody writes to: it ends when this process does, whatever
    ends it, and the process has to end then.

    Args:
      command: its words.
      log: gets what it prints, after what is there.
    """
    with open(log, "ab") as file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            message = f"{command[0]} cannot be started: {error.strerror}"
            raise UserError(message) from None
    return Started(process, log, time.monotonic())


def exit_code(started: Started) -> int | None:
    """The exit code of a process; None while it runs."""
    code = started.process.poll()
    if code is not None and started.process.stdin:
        started.process.stdin.close()
    return code


def end(started: Started, number: int = signal.SIGTERM) -> None:
    """Send a signal to a process and to those that it has started."""
    if started.process.poll() is None:
        os.killpg(started.process.pid, number)


def last_line(log: Path) -> str:
    """The last line of a log that says something, such as an error."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _SHOWN))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def largest_memory() -> int:
    """Bytes that the largest of the runs that have ended has needed; 0 before."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


class Lines(NamedTuple):
    """The functions by which a sweep writes to the console."""

    say: Callable[[str], None]  # a line that stays
    show: Callable[[int, int, str], None]  # runs that have ended, all runs, status


@contextlib.contextmanager
def lines() -> Iterator[Lines]:
    """A live bar on a terminal, and lines that stay; the lines alone in a file."""
    console = Console(highlight=False, soft_wrap=True)
    columns = (
        TextColumn("{task.completed} of {task.total} runs"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, status: str) -> None:
            bar.update(task, completed=done, total=total, description=status)

        yield Lines(lambda line: console.print(line, markup=False), show)


_POLL_SECONDS = 0.2
_GRACE_SECONDS = 120.0  # to save, after Ctrl-C
_TRIES = 2
_HEAD = "from math import inf, nan\n\nfrom ml_collections import ConfigDict\n\n\n"


class Job(NamedTuple):
    """A sweep and where it runs."""

    plan: Plan
    best: BestValue
    file: Path  # that describes the sweep
    folder: Path  # that exists
    program: Sequence[str]  # that trains, before its words


class SweepLimits(NamedTuple):
    """What runs at the same time."""

    jobs: int
    memory: float  # bytes


class Look(NamedTuple):
    """Where a sweep stands."""

    runs: Sequence[PlannedRun]
    entries: Mapping[str, Entry]
    figures: Mapping[str, Mapping[str, float]]  # of finished runs
    running: Mapping[str, float] = MappingProxyType({})  # their seconds so far
    signum: int = 0  # of the signal that has ended it

    def entry(self, run: PlannedRun) -> Entry:
        return self.entries.get(run.name, Entry())

    @property
    def left(self) -> list[PlannedRun]:
        """The runs that have not ended; interrupted ones come first."""
        left = [run for run in self.runs if not self.entry(run).ended]
        return sorted(left, key=lambda run: self.entry(run).state == "waiting")


def workdir(job: Job, run: PlannedRun) -> Path:
    return job.folder / "runs" / run.name


def logfile(job: Job, run: PlannedRun) -> Path:
    return job.folder / "logs" / f"{run.name}.log"


def frozen(folder: Path, run: PlannedRun) -> str:
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
    limits: SweepLimits,
    *,
    retry: bool = False,
    shown: Callable[[Look], None] = lambda look: None,
    ended: Callable[[Look, PlannedRun], None] = lambda look, run: None,
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


def _begin(job: Job, run: PlannedRun) -> Started:
    words = frozen(job.folder / "configs", run), f"--workdir={workdir(job, run)}"
    return begin([*job.program, *words], logfile(job, run))


def _has_room(running: int, limits: SweepLimits) -> bool:
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
) -> Iterator[PlannedRun]:
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


_PROGRAM = (sys.executable, "-m", __name__)
# What a process does before jax starts, which it does once.
_OF_A_PROCESS = ("deterministic", "mapper", "platform", "workers", "workers_per_device")


def check_runs(job: Job) -> None:
    """Build each run that is new, in processes that end before the first run begins.

    Raises:
      UserError: a run cannot be built, or no column says how good it is; names it.
    """

    def kind(run: PlannedRun) -> str:
        return json.dumps([run.config.get(key) for key in _OF_A_PROCESS])

    known = read_record(job.folder)
    runs = sorted((run for run in job.plan({}) if run.name not in known), key=kind)
    for _, alike in groupby(runs, kind):
        given = json.dumps([job.best, [(run.name, run.config) for run in alike]])
        done = subprocess.run(_PROGRAM, input=given, capture_output=True, text=True)
        if done.returncode:
            raise UserError(done.stdout.strip() or done.stderr.strip().split("\n")[-1])


def _columns(config: Any) -> tuple[str, ...]:
    """The columns of the metrics.csv of a config, for which everything is built."""
    from jaxcomp.training.plan import build, gather_workers
    from jaxcomp.training.tables import columns_of

    return columns_of(build(config, gather_workers(config)), config)


def _main() -> int:
    best, configs = json.load(sys.stdin)
    try:
        for name, config in configs:
            with within(name):
                check_column(BestValue(*best), _columns(ConfigDict(config).lock()))
    except UserError as error:
        print(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main())


SUMMARY = "summary.csv"


def write_summary(job: Job, look: Look) -> Path:
    """Write a row for each run: what differs, what came out, and the whole config.

    Args:
      job: the sweep.
      look: where it stands.

    Returns:
      The file.
    """
    differ = differing(look.runs)
    same = [k for run in look.runs for k in run.config if k not in differ]
    labels = dict.fromkeys(name for run in look.runs for name in run.setting.labels)
    # A label may have the name of a key, such as memory.
    labels = {
        name: name if name not in look.runs[0].config else f"{name} (label)"
        for name in labels
    }
    figures = dict.fromkeys(n for found in look.figures.values() for n in found)
    columns = [
        *("run", "state", *labels.values(), *differ, job.best.key),
        *(name for name in figures if name != job.best.key),
        *("run_seconds", "failures", "error", *dict.fromkeys(same)),
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for run in look.runs:
        entry = look.entry(run)
        row = {"run": run.name, "state": entry.state, "error": entry.error}
        row |= {"run_seconds": f"{entry.seconds:.1f}", "failures": entry.failures}
        row |= {labels[name]: label for name, label in run.setting.labels.items()}
        row |= {key: _cell(value) for key, value in run.config.items()}
        row |= {n: _number(v) for n, v in look.figures.get(run.name, {}).items()}
        writer.writerow(row)
    path = job.folder / SUMMARY
    write_atomically(path, text.getvalue())
    return path


def best_run(job: Job, look: Look) -> PlannedRun | None:
    """The run whose figure is the best; none where no run knows it."""
    scored = [
        (job.best.score(look.figures[run.name]), run)
        for run in look.runs
        if run.name in look.figures
    ]
    known = [pair for pair in scored if pair[0] > -math.inf]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def line_of(job: Job, look: Look, run: PlannedRun) -> str:
    """What is said of a run when it has ended."""
    entry, done = look.entry(run), sum(look.entry(r).ended for r in look.runs)
    place = f"{done} of {len(look.runs)}"
    if entry.state == "finished":
        figure = figure_text(job.best, look.figures.get(run.name, {}))
        return f"{place}: {run.setting.title}: {figure}, {seconds_text(entry.seconds)}"
    if entry.state == "failed":
        return f"{place}: {run.setting.title}: failed twice: {entry.error}"
    if entry.error:
        return f"{run.setting.title}: failed, and is started once more: {entry.error}"
    return f"{run.setting.title}: interrupted, and has saved"


def time_left(look: Look, jobs: int) -> str:
    """How long the other runs will take; nothing before one has finished.

    They are taken to need as long as the mean of those that have.
    """
    ended = [entry for run in look.runs if (entry := look.entry(run)).ended]
    took = [entry.seconds for entry in ended if entry.state == "finished"]
    if not took or not look.left:
        return ""
    mean = sum(took) / len(took)
    spent = sum(min(seconds, mean) for seconds in look.running.values())
    left = (mean * len(look.left) - spent) / min(jobs, len(look.left))
    return f"about {seconds_text(round(max(0.0, left)))} left"


def figure_text(best: BestValue, figures: Mapping[str, float]) -> str:
    """The figure by which runs are compared, as text.

    Example:
      >>> figure_text(Best("test_accuracy", 1), {"best_test_accuracy": 0.975})
      'best test accuracy 97.50 %'
    """
    value = figures.get(best.key, math.nan)
    text = percent_text if best.column.endswith("accuracy") else number_text
    shown = MISSING if math.isnan(value) else text(value)
    return f"best {best.column.replace('_', ' ')} {shown}"


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.8g}"

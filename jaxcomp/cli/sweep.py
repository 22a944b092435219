"""`jaxcomp sweep`: train every setting of a grid once, through any interruption."""

import argparse
import copy
import csv
import io
import itertools
import json
import math
import os
import pprint
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxcomp.cli.config import load_config, override
from jaxcomp.cli.run_command import add_command
from jaxcomp.cli.supervise import caught_signals, process_group
from jaxcomp.cli.sweeps import PlannedRun, differing, make_plan, read_sweep
from jaxcomp.core.errors import UserError, within
from jaxcomp.core.files import write_atomically
from jaxcomp.core.specs import suggest
from jaxcomp.core.units import MISSING, number_text, percent_text
from jaxcomp.report import write_comparison
from jaxcomp.runs.folder import note_fact, read_json
from jaxcomp.runs.lock import locked
from jaxcomp.runs.table import Schema, read_header, read_table
from jaxcomp.training.plan import build, gather_workers
from jaxcomp.training.tables import columns_of

SUMMARY = "summary.csv"
_TRAIN = (sys.executable, "-m", "jaxcomp", "train")
_CHECK = (sys.executable, "-m", __name__)
_TABLE = "metrics.csv"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 120.0  # to save, after Ctrl-C
_HEAD = "from math import inf, nan\n\nfrom ml_collections import ConfigDict\n\n\n"
# What a process does before jax starts, which it does once.
_OF_A_PROCESS = ("deterministic", "mapper", "platform", "workers", "workers_per_device")


def add_parser(subparsers: Any) -> None:
    """Add the command `sweep`; as `run_command.add_command`."""
    parser = add_command(subparsers, "sweep", _run)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a sweep, as .py")
    add("--out", type=Path, metavar="FOLDER", help="by default output/NAME")
    jobs = "runs at the same time, 1 by default; each of them uses all cores"
    add("--jobs", type=int, default=1, metavar="N", help=jobs)
    again = "go on with runs that have failed before, such as by a loss of NaN"
    add("--retry", action="store_true", help=again)
    add("--list", action="store_true", help="show the runs, and train nothing")


class Job(NamedTuple):
    """A sweep and where it runs. How far a run is, its own folder says."""

    file: Path  # that describes it
    folder: Path
    runs: Sequence[PlannedRun]
    column: str  # of metrics.csv, which says how good a run is
    sign: int  # 1 where more of it is better, -1 where less is

    def workdir(self, run: PlannedRun) -> Path:
        return self.folder / "runs" / run.name

    def log(self, run: PlannedRun) -> Path:
        return self.folder / "logs" / f"{run.name}.log"

    def config(self, run: PlannedRun) -> Path:
        return self.folder / "configs" / f"{run.name}.py"

    def facts(self, run: PlannedRun) -> dict[str, Any]:
        """What the run's folder says: `sweep` once it has finished, `failed` else."""
        return read_json(self.workdir(run) / "environment.json")

    def finished(self, run: PlannedRun) -> bool:
        return "sweep" in self.facts(run)

    def failed(self, run: PlannedRun) -> str:
        """Why the run has failed, in a line; "" where its folder does not say so."""
        return str(self.facts(run).get("failed", "")).partition("\n")[0]


def _run(args: argparse.Namespace) -> int:
    """Train a config in many settings: each of them is one run. Writes summary.csv,
    with a row for each run, and a page that compares them.

    example:
      jaxcomp sweep configs/sweeps/digits.py
      jaxcomp sweep configs/sweeps/digits.py --jobs=4 --out=output/again

    The same command goes on after Ctrl-C, a kill or a failure: runs that have finished
    are left as they are, and one that was interrupted goes on. Another --out begins
    anew. docs/sweeps.md shows how a sweep is written.
    """
    if args.jobs < 1:
        raise UserError(f"--jobs is at least 1, not {args.jobs}")
    sweep = read_sweep(args.file)
    config = load_config(sweep.config)
    runs = make_plan(sweep, lambda words: override(copy.deepcopy(config), words))
    if args.list:
        print(*(run.setting.title for run in runs), sep="\n")
        return 0
    folder = args.out or Path("output") / args.file.stem
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "runs").is_dir():
        message = f"{folder} holds other things than a sweep: take a folder of its own"
        raise UserError(message)
    job = Job(args.file, folder, runs, *parse_best(sweep.best))
    check_runs(job)
    for name in ("configs", "logs", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    print(f"sweep in {folder}", flush=True)
    errors, signum = train_all(job, args.jobs, args.retry)
    figures = write_summary(job, errors)
    if signum:
        done = f"stopped; {len(figures)} of {len(runs)} runs have finished"
        print(done, "Go on with the same command.", sep="\n", file=sys.stderr)
        return 128 + signum
    for run in runs:
        if run.name in errors:
            print(f"failed: {run.setting.title}: {errors[run.name]}")
            print(f"  {job.log(run)}")
    _conclude(job, figures)
    return 1 if errors else 0


def _conclude(job: Job, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Compare the runs that have finished, and say which is the best."""
    scores = {n: job.sign * it.get(_best(job), math.nan) for n, it in figures.items()}
    known = [run for run in job.runs if not math.isnan(scores.get(run.name, math.nan))]
    if known:
        finished = [job.workdir(run) for run in job.runs if run.name in figures]
        page = job.folder / "comparison.html"
        write_comparison(finished, page, job.file.stem)
        best = max(known, key=lambda run: scores[run.name])
        print(f"best run       {best.setting.title}: {_told(job, figures[best.name])}")
        print(f"               {job.workdir(best)}")
        words = f"--config={job.config(best)}", f"--workdir=runs/{best.name}"
        print(f"the same again jaxcomp train {shlex.join(words)}")
        print(f"comparison     {page}")
    print(f"summary        {job.folder / SUMMARY}")


# --- Checks before the first run ----------------------------------------------------


def parse_best(text: str) -> tuple[str, int]:
    """The column by which runs are compared, and 1 where more of it is better, else -1.

    Example:
      >>> parse_best("min test_loss")
      ('test_loss', -1)
    """
    signs = {"max": 1, "min": -1}
    sign, _, column = text.partition(" ")
    if sign not in signs or not column.isidentifier():
        message = "'max' or 'min' and a column of metrics.csv, such as 'min test_loss'"
        raise UserError(f"best is {message}, not {text!r}")
    return column, signs[sign]


def check_column(column: str, columns: Sequence[str]) -> None:
    """Refuse a column that the metrics.csv of a run does not have."""
    if column not in columns:
        raise UserError(
            f"{_TABLE} has no column {column!r}. {suggest(column, columns)}"
        )


def check_runs(job: Job) -> None:
    """Build each run that is new, in processes that end before the first run begins.

    Raises:
      UserError: a run cannot be built, or no column says how good it is; names it.
    """

    def kind(run: PlannedRun) -> str:
        return json.dumps([run.config.get(key) for key in _OF_A_PROCESS])

    runs = sorted((run for run in job.runs if not job.config(run).exists()), key=kind)
    for _, alike in itertools.groupby(runs, kind):
        given = json.dumps([job.column, [(run.name, run.config) for run in alike]])
        done = subprocess.run(_CHECK, input=given, capture_output=True, text=True)
        if done.returncode:
            raise UserError(done.stdout.strip() or done.stderr.strip().split("\n")[-1])


def check_given() -> int:
    """In a process of its own: build the configs on standard input, and check them."""
    column, configs = json.load(sys.stdin)
    try:
        for name, values in configs:
            with within(name):
                config: Any = ConfigDict(values).lock()
                plan = build(config, gather_workers(config))
                check_column(column, columns_of(plan, config))
    except UserError as error:
        print(error)
        return error.exit_code
    return 0


# --- Training -----------------------------------------------------------------------


def train_all(job: Job, jobs: int, retry: bool = False) -> tuple[dict[str, str], int]:
    """Train each run that has not ended yet, each in a process of its own.

    A run that was interrupted goes on, because the trainer does.

    Args:
      job: the sweep.
      jobs: how many run at the same time.
      retry: whether runs that have failed before are started again.

    Returns:
      The errors of runs that have failed, by name, and the signal that has ended the
      sweep, or 0.

    Raises:
      RunError: another process runs this sweep.
    """
    with (
        locked(job.folder) as hold,
        caught_signals() as caught,
        process_group(grace=0) as group,
    ):
        left = [run for run in job.runs if not job.finished(run)]
        errors = {} if retry else {r.name: job.failed(r) for r in left if job.failed(r)}
        left = [run for run in left if run.name not in errors]
        left.sort(key=lambda run: not job.workdir(run).exists())
        running: list[tuple[PlannedRun, subprocess.Popen[Any]]] = []
        told, kill_at = 0, math.inf
        while running or left and not caught:
            while left and len(running) < jobs and not caught:
                hold()
                running.append((left[0], _start(job, left.pop(0), group)))
            time.sleep(_POLL_SECONDS)
            if len(caught) > told or time.monotonic() > kill_at:
                if not told:
                    print("the runs save and end (Ctrl-C again kills them)", flush=True)
                os.killpg(group, signal.SIGKILL if told else signal.SIGTERM)
                told, kill_at = len(caught), time.monotonic() + _GRACE_SECONDS
            for run, process in [it for it in running if it[1].poll() is not None]:
                running.remove((run, process))
                _end(job, run, process.returncode, errors, was_asked=bool(caught))
        return errors, caught[0] if caught else 0


def _start(job: Job, run: PlannedRun, group: int) -> subprocess.Popen[Any]:
    """Start a run by the config as it is now: who edits its file changes no run."""
    config = job.config(run)
    if not config.exists():
        values = f"    return ConfigDict({pprint.pformat(run.config)})\n"
        write_atomically(config, f"{_HEAD}def get_config():\n{values}")
    command = [*_TRAIN, f"--config={config}", f"--workdir={job.workdir(run)}"]
    with open(job.log(run), "ab") as file:
        out: Any = {"stdout": file, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=group, **out
        )


def _end(
    job: Job, run: PlannedRun, code: int, errors: dict[str, str], was_asked: bool
) -> None:
    """Note how a run has ended whose process has, and say it."""
    setting = run.setting
    if code == 0:
        facts = {"labels": dict(setting.labels), "keys": sorted(setting.meant)}
        note_fact(job.workdir(run), "sweep", facts)
    elif not was_asked:
        text = job.log(run).read_text(errors="replace")
        lines = filter(None, map(str.strip, reversed(text.splitlines())))
        errors[run.name] = job.failed(run) or next(lines, f"exit code {code}")
    figures = write_summary(job, errors)
    if code == 0:
        said = _told(job, figures[run.name])
    else:
        failed = f"failed: {errors.get(run.name)}"
        said = "interrupted, and has saved" if was_asked else failed
    done = len(figures) + len(errors)
    print(f"{done} of {len(job.runs)}: {setting.title}: {said}", flush=True)


# --- What came out ------------------------------------------------------------------


def _best(job: Job) -> str:
    return f"best_{job.column}"


def _told(job: Job, figures: Mapping[str, float]) -> str:
    """The figure by which runs are compared, as text."""
    value = figures.get(_best(job), math.nan)
    text = percent_text if job.column.endswith("accuracy") else number_text
    shown = MISSING if math.isnan(value) else text(value)
    return f"best {job.column.replace('_', ' ')} {shown}"


def figures_of(folder: Path, column: str, sign: int) -> dict[str, float]:
    """The figures of a run: `final_COLUMN`, and where it was best `best_COLUMN`.

    Args:
      folder: of the run.
      column: decides where that was.
      sign: 1 where more of it is better, else -1.

    Raises:
      UserError: the run's metrics.csv has no such column, or cannot be read.
    """
    import numpy as np

    columns = read_header(folder / _TABLE)
    if not columns:
        return {}
    check_column(column, columns)
    table = read_table(folder / _TABLE, Schema(tuple(columns), ("step",)))
    if not len(table["step"]):
        return {}
    if "wire_bytes_per_step" in table:
        steps = np.diff(table["step"], prepend=0)
        sent = np.nan_to_num(steps * table["wire_bytes_per_step"])
        table["bytes_sent"] = np.cumsum(sent)
    figures = {f"final_{name}": float(values[-1]) for name, values in table.items()}
    worth = sign * table[column]
    if not np.isnan(worth).all():
        place = int(np.nanargmax(worth))
        shown = [name for name in ("epoch", "step", column) if name in table]
        figures |= {f"best_{name}": float(table[name][place]) for name in shown}
    return figures


def write_summary(job: Job, errors: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Write a row for each run: what differs, what came out, and the whole config.

    Args:
      job: the sweep.
      errors: of runs that have failed, by name.

    Returns:
      The figures of the runs that have finished, by name.
    """
    figures = {
        run.name: figures_of(job.workdir(run), job.column, job.sign)
        for run in job.runs
        if job.finished(run)
    }
    differ = differing(job.runs)
    rows = []
    for run in job.runs:
        # A label may have the name of a key, such as memory.
        labels = {
            f"{name} (label)" if name in run.config else name: label
            for name, label in run.setting.labels.items()
        }
        config = {
            key: json.dumps(value) if isinstance(value, list | dict) else value
            for key, value in run.config.items()
        }
        found = figures.get(run.name, {}).items()
        reached = {n: "" if math.isnan(v) else f"{v:.8g}" for n, v in found}
        state = "failed" if run.name in errors else ""
        rows.append(
            {"run": run.name, "state": "finished" if run.name in figures else state}
            | labels
            | {key: config[key] for key in differ if key in config}
            | {_best(job): reached.get(_best(job), "")}
            | reached
            | {"error": errors.get(run.name, "")}
            | config
        )
    text = io.StringIO(newline="")
    whole = sorted(rows, key=lambda row: row["state"] != "finished")
    columns = list(dict.fromkeys(name for row in whole for name in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(job.folder / SUMMARY, text.getvalue())
    return figures


if __name__ == "__main__":
    sys.exit(check_given())

"""Loggers: where the figures of a run go, beside its tables. One line for each.

A factory takes the arguments of its spec and returns a function that opens the logger
in the folder of a run. So a wrong name or argument is told before anything is computed.
"""

import functools
import hashlib
import importlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.core.errors import UserError
from jaxcomp.core.files import write_atomically
from jaxcomp.core.specs import build, check, check_kind, importable, publish
from jaxcomp.runs.folder import read_json

Row = Mapping[str, Any]


class Logger(NamedTuple):
    """Writes rows of a run down; a row has the columns of the run's tables."""

    epoch: Callable[[Row], None]  # a row of metrics.csv
    step: Callable[[Row], None]  # a row of steps.csv
    close: Callable[[], None] = lambda: None  # at the end of the run, however it ends


class RunSoFar(NamedTuple):
    """A run that begins, or goes on from a checkpoint."""

    folder: Path
    config: Mapping[str, Any]
    start: int  # the step that it goes on from; 0: it begins
    epochs: list[dict[str, str]] = []  # the rows until then; never changed in place
    steps: list[dict[str, str]] = []


Opener = Callable[[RunSoFar], Logger]


def numbers(row: Row) -> dict[str, float]:
    """The figures of a row that are known; text of a table is read as a number.

    Example:
      >>> numbers({"step": 3, "loss": "0.5", "test_loss": "", "own_accuracy": None})
      {'step': 3, 'loss': 0.5}
    """
    found = {name: _number(value) for name, value in row.items()}
    return {name: value for name, value in found.items() if value == value}


def _number(value: Any) -> float:
    if value is None or value == "":
        return float("nan")
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return value if isinstance(value, int) else float(value)


_DIGITS = 8  # as in the tables
FOLDER = "tensorboard"  # in the run folder; profiles go there too
_HEADER = "epoch\thours\ttop1Accuracy\n"


def csv() -> Opener:
    """metrics.csv and steps.csv, which every run writes."""
    return lambda run: Logger(lambda row: None, lambda row: None)


def jsonl() -> Opener:
    """metrics.jsonl: each row of both tables as a JSON object; null where infinite."""

    def open_(run: RunSoFar) -> Logger:
        rows = [("step", row) for row in run.steps]
        rows += [("epoch", row) for row in run.epochs]
        rows.sort(key=lambda pair: numbers(pair[1])["step"])  # of one step: steps first
        lines = [_object(kind, row) for kind, row in rows]
        add = _appending(run.folder / "metrics.jsonl", "".join(lines))
        return Logger(
            epoch=lambda row: add(_object("epoch", row)),
            step=lambda row: add(_object("step", row)),
        )

    return open_


def tsv() -> Opener:
    """logs.tsv, as DAWNBench takes it: epoch, hours of training, top-1 accuracy in %.

    References:
      Coleman et al., DAWNBench: An End-to-End Deep Learning Benchmark and Competition,
      2017.
    """

    def open_(run: RunSoFar) -> Logger:
        text = _HEADER + "".join(map(_evaluation, run.epochs))
        add = _appending(run.folder / "logs.tsv", text)
        return Logger(epoch=lambda row: add(_evaluation(row)), step=lambda row: None)

    return open_


def tensorboard() -> Opener:
    """tensorboard/: the same figures as scalars; look with `tensorboard --logdir=runs`.

    A run that goes on begins a file of its own, which tells TensorBoard to forget the
    steps after the checkpoint.
    """

    def open_(run: RunSoFar) -> Logger:
        events = importlib.import_module("tensorboardX.event_file_writer")
        proto = importlib.import_module("tensorboardX.proto.event_pb2")
        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        # Readers go through the files in the order of their names.
        number = len(list(folder.glob("events*")))
        name = f"events_{number:04d}" if number else "events"
        writer = events.EventsWriter(str(folder / name))

        def write(step: int, **content: Any) -> None:
            event = proto.Event(wall_time=time.time(), step=step, **content)
            writer.write_event(event)
            writer.flush()  # a kill cuts off at most the last row

        def scalars(step: int, tagged: dict[str, float]) -> None:
            pairs = tagged.items()
            values = [{"tag": tag, "simple_value": value} for tag, value in pairs]
            write(step, summary={"value": values})

        write(run.start + 1, session_log={"status": "START"})
        return _scalars(scalars, writer.close)

    return open_


def _scalars(
    write: Callable[[int, dict[str, float]], object], close: Callable[[], None]
) -> Logger:
    """A logger that writes the figures of a step by tags, such as step/loss."""

    def add(kind: str, row: Row) -> None:
        known = numbers(row)
        step = int(known.pop("step"))
        write(step, {f"{kind}/{name}": value for name, value in known.items()})

    return Logger(lambda row: add("epoch", row), lambda row: add("step", row), close)


def _appending(path: Path, text: str) -> Callable[[str], None]:
    """Write a file whole, and return what appends a line to it."""
    write_atomically(path, text)

    def add(line: str) -> None:
        if line:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line)

    return add


def _object(kind: str, row: Row) -> str:
    """A row as a line of JSON, which knows no infinities."""
    known = {
        name: (value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}"))
        if math.isfinite(value)
        else None
        for name, value in numbers(row).items()
    }
    return json.dumps({"kind": kind, **known}) + "\n"


def _evaluation(row: Row) -> str:
    """A row as a line of logs.tsv; nothing where the epoch was not evaluated."""
    known = numbers(row)
    if "test_accuracy" not in known:
        return ""
    hours, percent = known["seconds"] / 3600, 100 * known["test_accuracy"]
    return f"{known['epoch']}\t{hours:.8f}\t{percent:.2f}\n"


def wandb(project: str = "jaxcomp") -> Opener:
    """Weights & Biases; a run that goes on goes on there. Needs the package `wandb`.

    Its own settings come from the environment: WANDB_MODE=offline sends nothing.

    Args:
      project: under which the run is listed.
    """
    try:
        package = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        message = "is not installed: pip install wandb, or leave it out of loggers"
        raise UserError(message) from None

    def open_(run: RunSoFar) -> Logger:
        started = read_json(run.folder / "environment.json").get("started", "")
        identity = hashlib.sha256(f"{run.folder.resolve()} {started}".encode())
        tracked = package.init(
            project=project,
            name=run.folder.name,
            id=identity.hexdigest()[:16],
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
        )

        return _scalars(
            lambda step, tagged: tracked.log(tagged, step=step), tracked.finish
        )

    return open_


REGISTRY: dict[str, Callable[..., Opener]] = {
    "csv": csv,
    "jsonl": jsonl,
    "tensorboard": tensorboard,
    "tsv": tsv,
    "wandb": wandb,
}
publish(logger=REGISTRY)
_OF_FILES = ("csv", "jsonl", "tensorboard", "tsv")  # a full disk ends a run anyway


class Named(NamedTuple):
    """A logger of a config, ready to be opened."""

    name: str
    open: Opener


def make(specs: Sequence[str]) -> list[Named]:
    """Look up loggers, and check their arguments.

    Args:
      specs: names in `REGISTRY`, or of your own: `my_package.loggers:mine(arg=1)`.

    Raises:
      SpecError: there is no such logger or argument.
      UserError: a logger is named twice, or its package is not installed.

    Example:
      >>> [named.name for named in make(["csv", "tensorboard"])]
      ['csv', 'tensorboard']
      >>> make(["tensorbord"])
      Traceback (most recent call last):
      jaxcomp.SpecError: unknown logger 'tensorbord'. Did you mean ...
    """
    twice = sorted({str(spec) for spec in specs if list(specs).count(spec) > 1})
    if twice:
        raise UserError(f"loggers name {twice[0]!r} twice: leave one of them out")
    made = []
    for spec in specs:
        check(str, "a logger", spec)
        rest, registry = importable(spec, REGISTRY, "logger")
        opener = build(rest, registry, "logger")
        made.append(Named(spec, check_kind(opener, Callable, spec, "logger")))
    return made


def opened(named: Sequence[Named], run: RunSoFar, say: Callable[[str], None]) -> Logger:
    """All loggers of a run as one.

    Trackers and loggers of one's own must not stop a run: their first error is said,
    and then they are left out.

    Args:
      named: from `make`.
      run: that begins or goes on.
      say: where a line for people goes.
    """
    working: dict[str, Logger] = {}

    def attempt(name: str, act: Callable[..., Any], *row: Row) -> Any:
        try:
            return act(*row)
        except Exception as error:
            if name in _OF_FILES:
                raise
            working.pop(name, None)
            why = f"{type(error).__name__}: {error}"
            say(f"WARNING: logger {name!r} is left out from here on: {why}")

    def open_(each: Named) -> None:
        working[each.name] = check_kind(each.open(run), Logger, each.name, "logger")

    def all_of(function: str) -> Callable[..., None]:
        def act(*row: Row) -> None:
            for name, logger in [*working.items()]:
                attempt(name, getattr(logger, function), *row)

        return act

    for each in named:
        attempt(each.name, functools.partial(open_, each))
    return Logger(*map(all_of, Logger._fields))

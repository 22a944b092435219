"""What a report reads of run folders."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.units import MISSING, number_text
from jaxcomp.runs.folder import RunError, read_json
from jaxcomp.runs.table import (
    EPOCHS,
    STEPS,
    Schema,
    Table,
    read_rows,
    read_table,
)

# Tables that a run writes if it is asked to; their cells are names as well as numbers.
_OPTIONAL = ("breakdown", "layers")


class Run(NamedTuple):
    """What the folder of a run holds."""

    name: str  # of the folder
    config: dict[str, Any]  # config.json; empty if it is missing or cut off
    environment: dict[str, Any]  # environment.json; likewise
    # Columns of metrics.csv: those of `EPOCHS`. One that the file lacks is NaN.
    metrics: Table
    steps: Table = {}  # steps.csv of a training run; without the file it has no rows
    # Rows of breakdown.csv and layers.csv, as texts by column; no rows without a file.
    others: dict[str, list[dict[str, str]]] = {}


def read_run(folder: str | os.PathLike[str]) -> Run:
    r"""Read a training run, also one that was killed while it wrote.

    Args:
      folder: of the run.

    Raises:
      RunError: there is no such folder, or its metrics.csv holds no complete epoch.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     table = "epoch,step,test_accuracy\n1,10,0.25\n2,20,0.5\n3,30,0."
      ...     _ = Path(folder, "metrics.csv").write_text(table)
      ...     run = read_run(folder)
      >>> run.metrics["test_accuracy"]
      array([0.25, 0.5 ])
    """
    path = Path(folder)
    if not path.is_dir():
        raise RunError(f"no run folder at {path}: expected a folder of a trainer")
    if not (path / "metrics.csv").is_file():
        raise RunError(
            f"no metrics.csv in {path}: expected the run folder of a trainer, which "
            f"holds config.json, environment.json, metrics.csv and steps.csv"
        )
    own = str(read_json(path / "environment.json").get("measure") or "accuracy")
    parts = ("train", "test", "own", "worst", "ema")
    run = _read(path, _with(EPOCHS, *(f"{part}_{own}" for part in parts)), "epoch")
    others = {name: read_rows(path / f"{name}.csv") for name in _OPTIONAL}
    steps = read_table(path / "steps.csv", _with(STEPS, own))
    return run._replace(steps=steps, others=others)


def _with(schema: Schema, *columns: str) -> Schema:
    """A schema with further columns, such as those of a task's own measure."""
    return schema._replace(columns=tuple(dict.fromkeys((*schema.columns, *columns))))


def _read(path: Path, schema: Schema, row: str) -> Run:
    """A run whose table has at least one row; `row` is what a row stands for."""
    metrics = read_table(path / "metrics.csv", schema)
    if not metrics["step"].size:
        raise RunError(
            f"no complete row in {path / 'metrics.csv'}: expected one row per {row}, "
            f"so the run has to finish its first {row} before it has a report"
        )
    return Run(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=metrics,
    )


def sender(runs: Sequence[Run]) -> str:
    """Whose bytes the tables of runs count.

    Example:
      >>> runs = [Run("a", {"workers_per_device": count}, {}, {}) for count in (1, 2)]
      >>> sender(runs[:1]), sender(runs[1:]), sender(runs)
      ('worker', 'device', 'worker or device')
    """
    keys = ("workers_per_device", "devices_per_node")
    shared = {any(_count(run.config, key) > 1 for key in keys) for run in runs}
    names = {False: "worker", True: "device"}
    return " or ".join(names[kind] for kind in sorted(shared))


def leaver(runs: Sequence[Run]) -> str:
    """What the bytes leave that tables and curves count, as the runs say.

    Example:
      >>> facts = {"leaver": "host of 2 workers"}
      >>> leaver([Run("a", {}, facts, {})]), leaver([Run("a", {}, {}, {})])
      ('host of 2 workers', 'worker')
    """
    names = {str(run.environment.get("leaver") or sender([run])) for run in runs}
    return " or ".join(sorted(names))


def holder(runs: Sequence[Run]) -> str:
    """Who has a model of its own, where not all share one.

    Example:
      >>> holder([Run("a", {"devices_per_node": 2}, {}, {})])
      'node'
    """
    several = {_count(run.config, "devices_per_node") > 1 for run in runs}
    names = {False: "worker", True: "node"}
    return " or ".join(names[kind] for kind in sorted(several))


def workers_text(config: dict[str, Any]) -> str:
    """How many workers a run has, and what else is to be said of their number.

    Example:
      >>> workers_text({"workers": 4}), workers_text({"workers": 1}), workers_text({})
      ('4 workers', '1 worker', '')
      >>> workers_text({"workers": 4, "workers_per_device": 2})
      '4 workers on 2 devices'
      >>> workers_text({"workers": 8, "devices_per_node": 2})
      '4 nodes of 2 devices'
    """
    count = config.get("workers")
    if not count:
        return ""
    nodes, lanes = (
        _count(config, key) for key in ("devices_per_node", "workers_per_device")
    )
    if nodes > 1:
        return f"{_several(count // nodes, 'node')} of {nodes} devices"
    where = f" on {_several(count // lanes, 'device')}" if lanes > 1 else ""
    return _several(count, "worker") + where


def _count(config: dict[str, Any], key: str) -> int:
    return config.get(key) or 1


def _several(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


_ELSEWHERE = ("command", "failed", "graph")  # facts that a page shows in another form


class Provenance(NamedTuple):
    """Where the figures of a run come from, as names and texts."""

    config: dict[str, str]
    environment: dict[str, str]
    command: str  # empty if it was not recorded


def provenance(run: Run) -> Provenance:
    """The config, the environment and the command of a run.

    Example:
      >>> provenance(Run("a", {}, {"command": ["train.py", "--note=a b"]}, {})).command
      "train.py '--note=a b'"
    """
    facts = {k: fact for k, fact in run.environment.items() if k not in _ELSEWHERE}
    words = run.environment.get("command")
    command = shlex.join(map(str, words)) if isinstance(words, list) else ""
    return Provenance(flatten(run.config), flatten(facts), command)


def started(run: Run) -> str:
    """The name of a run, and when it started if that was recorded.

    Example:
      >>> started(Run("first", {}, {"started": "2025-11-18"}, {}))
      'run first, started 2025-11-18'
    """
    time = run.environment.get("started")
    return f"run {run.name}, started {time}" if time else f"run {run.name}"


def flatten(content: Mapping[str, Any]) -> dict[str, str]:
    """A nested dict as one level of dotted names and texts.

    Args:
      content: as read from a JSON file.

    Example:
      >>> flatten({"seed": 0, "optimizer": {"name": "sgd"}, "devices": ["a", "b"]})
      {'seed': '0', 'optimizer.name': 'sgd', 'devices': 'a, b'}
    """
    flat = {}
    for name, value in content.items():
        if isinstance(value, dict) and value:
            inner = flatten(value)
            flat |= {f"{name}.{key}": text for key, text in inner.items()}
        else:
            flat[name] = _value_text(value)
    return flat


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return MISSING
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


# Where nothing is lost, there is nothing that these memories could keep.
_KEEPERS = ("error_feedback", "ef21")
_OF_COMPRESSION = ("policy", "scope")


class Settings(NamedTuple):
    """What a run was asked for, and what of it means nothing."""

    config: dict[str, str]  # by dotted names; the compressor is "none" if it is unused
    unused: frozenset[str] = frozenset()  # other keys

    def of(self, key: str) -> str:
        """The value of a key; "" where there is none, or no use for it."""
        return "" if key in self.unused else self.config.get(key, "")


def settings_of(run: Run) -> Settings:
    """The settings of a run.

    A compressor is used if the method, as environment.json has it, names it.

    Example:
      >>> asked = {"exchange": "exact", "compressor": "sign", "scope": "per_leaf"}
      >>> found = settings_of(Run("a", asked, {}, {}))
      >>> found.config["compressor"], found.of("scope")
      ('none', '')
    """
    config = flatten(run.config)
    if not config.get("compressor"):
        return Settings(config)
    method = str(run.environment.get("method") or "")
    if _names(config.get("exchange", ""))[:1] == ["exact"]:
        unused = {*_OF_COMPRESSION}
        if _names(config.get("memory", ""))[:1] in ([name] for name in _KEEPERS):
            unused.add("memory")
    elif method and not {*_names(config["compressor"])} & {*re.findall(r"\w+", method)}:
        unused = set()
    else:
        return Settings(config)
    return Settings(config | {"compressor": "none"}, frozenset(unused))


def _names(spec: str) -> list[str]:
    """The names in a spec, without their arguments.

    Example:
      >>> _names("top_k(keep=0.1) | cast(dtype='float16')")
      ['top_k', 'cast']
    """
    return re.findall(r"\w+", re.sub(r"\([^()]*\)", "", spec))


_SHARE = 0.1  # of the logged steps, what counts as the end of a run
_WORSE = 1.1  # batches differ: a loss that ends so much above its beginning diverged

# Alarms of a page, by the column of metrics.csv that is above 0.
_ALARMS = {
    "residual_grows": (
        "the residual, which the memory keeps for later steps, grew without bound: the "
        "compressor loses more than the memory can return, so that much of the "
        "gradient never reaches the model. See error_feedback in docs/methods.md."
    ),
    "traced": (
        "bytes were counted in the traced step, because the compiled program could not "
        "be read. The run's console shows which line of it."
    ),
    "skipped_steps": (
        "steps were left out, because a loss or a gradient in them was not finite. "
        "The table of epochs says how many."
    ),
}
_OLD = (
    "This run does not know how many bytes left a worker, which older versions did not "
    "record: its bytes are those of the messages, and there is no ratio."
)


class Ending(NamedTuple):
    """How a run ended, or how far it has come."""

    kind: str  # finished | unfinished | failed | diverged
    text: str


def ending(run: Run) -> Ending:
    """How a run ended.

    Example:
      >>> columns = {"step": np.array([10.0]), "epoch": np.array([1.0])}
      >>> columns["train_loss"] = np.array([0.5])
      >>> ending(Run("a", {"train_for": "20 steps"}, {}, columns)).text
      'unfinished: step 10 of 20'
    """
    failure = run.environment.get("failed")
    if failure:
        return Ending("failed", f"failed: {str(failure).splitlines()[0]}")
    why = _divergence(run)
    if why:
        return Ending("diverged", why)
    done, planned = _last_step(run), planned_steps(run)
    if planned and done < planned:
        done_text, all_text = number_text(done), number_text(planned)
        return Ending("unfinished", f"unfinished: step {done_text} of {all_text}")
    return Ending("finished", "finished")


def planned_steps(run: Run) -> float:
    """The steps of a whole run; 0 if they are not known.

    Example:
      >>> table = {"step": np.array([10.0]), "epoch": np.array([1.0])}
      >>> planned_steps(Run("a", {"train_for": "5 epochs"}, {}, table))
      50.0
    """
    words = re.fullmatch(
        r"\s*([\d.]+)\s+(step|epoch|example)s?\s*", str(run.config.get("train_for"))
    )
    if not words:
        return 0.0
    count, unit = float(words[1]), words[2]
    epochs, steps = run.metrics["epoch"], run.metrics["step"]
    if unit == "epoch":
        # Only an epoch that is whole tells how many steps one has: the first.
        count *= float(np.max(steps / np.maximum(epochs, 1e-9)))
    elif unit == "example":
        count /= float(run.config.get("batch_size") or np.inf)
    return float(np.floor(count + 1e-6))


def alarms(run: Run) -> list[str]:
    """What somebody has to know before looking at any figure of a run."""
    why = _divergence(run)
    found = [f"This run diverged: {why}."] if why else []
    failure = run.environment.get("failed")
    if failure:
        found.insert(0, f"This run has failed: {failure}")
    if np.isnan(run.metrics.get("bytes_left", np.zeros(1))[-1]):
        found.append(_OLD)
    for column, text in _ALARMS.items():
        seen = run.metrics.get(column, np.array([]))
        epochs = run.metrics["epoch"][np.flatnonzero(seen > 0)]
        if epochs.size:
            found.append(f"From epoch {number_text(epochs[0])} on, {text}")
    return found


def _last_step(run: Run) -> float:
    logged = run.steps.get("step", np.array([]))
    return float(max(run.metrics["step"][-1], *logged[-1:], 0))


def _divergence(run: Run) -> str:
    """What says that a run diverged; "" if nothing does."""
    losses = run.steps.get("loss", np.array([]))
    losses = losses if losses.size > 1 else run.metrics["train_loss"]
    losses = losses[~np.isnan(losses)]
    if not losses.size:
        return ""
    if not np.isfinite(losses[-1]):
        return "the loss is not finite at the end"
    some = max(1, int(_SHARE * losses.size))
    first, last = float(losses[0]), float(np.median(losses[-some:]))
    if last > _WORSE * first and losses.size > 2:
        return (
            f"the loss ended at {number_text(last)}, above the {number_text(first)} "
            "with which it began"
        )
    return ""

"""What a run folder holds, and how the run in it has ended."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.units import MISSING, number_text
from jaxcomp.runs import table
from jaxcomp.runs.folder import RunError, read_json
from jaxcomp.runs.table import Table

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

    @property
    def measure(self) -> str:
        """What the task is measured by; columns of the tables are named after it."""
        return str(self.environment.get("measure") or "accuracy")


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
    config, environment = (
        read_json(path / f"{name}.json") for name in ("config", "environment")
    )
    run = Run(path.resolve().name, config, environment, {})
    parts = ("train", "test", "own", "worst", "ema")
    metrics = _read(path, table.EPOCHS, *(f"{part}_{run.measure}" for part in parts))
    if not metrics["step"].size:
        raise RunError(
            f"no complete row in {path / 'metrics.csv'}: expected one row per epoch, "
            "so the run has to finish its first epoch before it has a report"
        )
    steps = _read(path, table.STEPS, run.measure)
    others = {name: table.read_rows(path / f"{name}.csv") for name in _OPTIONAL}
    return run._replace(metrics=metrics, steps=steps, others=others)


def _read(folder: Path, schema: table.Schema, *columns: str) -> Table:
    """A table with further columns, such as those of a task's own measure."""
    file = "metrics.csv" if schema is table.EPOCHS else "steps.csv"
    names = tuple(dict.fromkeys((*schema.columns, *columns)))
    return table.read_table(folder / file, schema._replace(columns=names))


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


_SHARE = 0.1  # of the logged steps, what counts as the end of a run
_WORSE = 1.1  # batches differ: a loss that ends so much above its beginning diverged

# Alarms of a page, by the column of metrics.csv that is above 0.
_ALARMS = {
    "traced": (
        "bytes were counted in the traced step, because the compiled program could not "
        "be read. The run's console shows which line of it."
    ),
    "skipped_steps": (
        "steps were left out, because a loss or a gradient in them was not finite. "
        "The table of epochs says how many."
    ),
}


class RunStatus(NamedTuple):
    """How a run ended, or how far it has come."""

    kind: str  # finished | unfinished | failed | diverged
    text: str


def run_status(run: Run) -> RunStatus:
    """How a run ended.

    Example:
      >>> columns = {"step": np.array([10.0]), "epoch": np.array([1.0])}
      >>> columns["train_loss"] = np.array([0.5])
      >>> run_status(Run("a", {"train_for": "20 steps"}, {}, columns)).text
      'unfinished: step 10 of 20'
    """
    failure = run.environment.get("failed")
    if failure:
        return RunStatus("failed", f"failed: {str(failure).splitlines()[0]}")
    why = _divergence(run)
    if why:
        return RunStatus("diverged", why)
    logged = run.steps.get("step", np.array([]))
    done = float(max(run.metrics["step"][-1], *logged[-1:], 0))
    planned = planned_steps(run)
    if planned and done < planned:
        done_text, all_text = number_text(done), number_text(planned)
        return RunStatus("unfinished", f"unfinished: step {done_text} of {all_text}")
    return RunStatus("finished", "finished")


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
    why, failure = _divergence(run), run.environment.get("failed")
    found = [f"This run has failed: {failure}"] if failure else []
    found += [f"This run diverged: {why}."] if why else []
    for column, text in _ALARMS.items():
        seen = run.metrics.get(column, np.array([]))
        epochs = run.metrics["epoch"][np.flatnonzero(seen > 0)]
        if epochs.size:
            found.append(f"From epoch {number_text(epochs[0])} on, {text}")
    return found


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

"""Read the files of a run folder into plain arrays and dicts."""

import csv
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.errors import UserError

Table = dict[str, np.ndarray]

METRIC_COLUMNS = (
    "epoch",
    "step",
    "examples",
    "seconds",
    "learning_rate",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "wire_bytes_per_step",
    "dense_bytes_per_step",
    "compression_ratio",
    "simulated",
    "traced",
    "residual_norm",
    "residual_grows",
    "gradient_error",
    "consensus_distance",
    "own_accuracy",
    "worst_accuracy",
)
STEP_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "accuracy",
    "learning_rate",
    "data_seconds",
    "step_seconds",
    "wait_seconds",
    "images_per_second",
    "gradient_norm",
    "residual_norm",
    "gradient_error",
)


class ReportError(UserError):
    """A run folder that no report can be made of; the message says why."""


class Run(NamedTuple):
    """What a run folder holds.

    Attributes:
        name: Name of the folder.
        config: Content of `config.json`, empty if the file is missing or cut off.
        environment: Content of `environment.json`, empty likewise.
        metrics: One array per column of `metrics.csv`, one entry per epoch. Every
            name of `METRIC_COLUMNS` is there; what the file lacks is NaN.
        steps: The same for `steps.csv` and `STEP_COLUMNS`, one entry per logged
            step; arrays of length 0 if the file is missing.
    """

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: Table
    steps: Table


def read_run(folder: str | os.PathLike[str]) -> Run:
    r"""Reads a run folder.

    Args:
        folder: Folder that a trainer wrote.

    Returns:
        The run, also of a folder whose run was killed while it wrote.

    Raises:
        ReportError: If there is no folder, or no complete epoch in `metrics.csv`, or
            if it is a folder of the convex testbed, which `read_convex` reads.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = "epoch,step,test_accuracy\n1,10,0.25\n2,20,0.5\n3,30,0."
    ...     _ = Path(folder, "metrics.csv").write_text(table)
    ...     run = read_run(folder)
    >>> run.metrics["test_accuracy"]
    array([0.25, 0.5 ])
    """
    path = Path(folder)
    if is_convex(path):
        raise ReportError(f"{path} holds a convex run, expected a training run")
    metrics = read_table(path / "metrics.csv", METRIC_COLUMNS, ("epoch",))
    if not metrics["epoch"].size:
        raise ReportError(
            f"no complete row in {path / 'metrics.csv'}: expected one row per epoch, "
            f"so the run has to finish its first epoch before it has a report"
        )
    return Run(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=metrics,
        steps=read_table(path / "steps.csv", STEP_COLUMNS, ("step",)),
    )


def is_convex(folder: str | os.PathLike[str]) -> bool:
    r"""Says whether a run folder is one of the convex testbed.

    Args:
        folder: The run folder.

    Returns:
        Whether its config names a problem, or else its table a suboptimality.

    Raises:
        ReportError: If there is no folder with a `metrics.csv`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "metrics.csv").write_text("seed,step,suboptimality\n")
    ...     is_convex(folder)
    True
    """
    path = Path(folder)
    if not path.is_dir():
        raise ReportError(f"no run folder at {path}: expected a folder of a trainer")
    if not (path / "metrics.csv").is_file():
        raise ReportError(
            f"no metrics.csv in {path}: expected the run folder of a trainer, which "
            f"holds config.json, environment.json, metrics.csv and steps.csv"
        )
    # The config may be missing or cut off; the table then says it.
    header, _ = _complete_rows(path / "metrics.csv")
    return "problem" in read_json(path / "config.json") or "suboptimality" in header


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file that holds names and values.

    Args:
        path: The file.

    Returns:
        Its content, empty if the file is missing or cut off.

    >>> read_json(Path("nowhere.json"))
    {}
    """
    # The curves are worth a report without these two files; the page says so.
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_table(path: Path, columns: tuple[str, ...], keys: tuple[str, ...]) -> Table:
    """Reads a CSV file of numbers.

    Args:
        path: The file.
        columns: Names of the columns to read; what the file lacks is NaN.
        keys: Names of the columns that tell rows apart. Rows are sorted by them, and
            of equal ones the last counts.

    Returns:
        One array per column, of length 0 if there is no file.

    Raises:
        ReportError: If a cell is no number, or a key is missing.

    >>> read_table(Path("nowhere.csv"), ("step",), ("step",))["step"].size
    0
    """
    header, rows = _complete_rows(path)
    for key in keys if header else ():
        if key not in header:
            raise ReportError(
                f"no column {key!r} in {path}: the first line is {','.join(header)!r}, "
                f"expected {','.join(columns)!r}"
            )
    table = {name: np.full(len(rows), np.nan) for name in columns}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ReportError(
                f"line {number} of {path} has {len(row)} cells, expected {len(header)} "
                f"as in its first line"
            )
        for name, cell in zip(header, row, strict=True):
            if name in table:
                table[name][number - 2] = _number(cell, f"line {number} of {path}")
        for key in keys:
            if not np.isfinite(table[key][number - 2]):
                raise ReportError(f"line {number} of {path} names no {key}: {row!r}")
    return _last_of_each(table, keys)


def _complete_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    if not path.is_file():
        return [], []
    # A damaged byte then shows up in the message about the cell it is in.
    text = path.read_text(encoding="utf-8", errors="replace")
    # A line without its line end was torn by a kill. It can look whole and still
    # hold a wrong last number (0.5 of 0.513), so it is never used.
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = list(csv.reader(lines))
    return (rows[0], rows[1:]) if rows else ([], [])


def _number(cell: str, place: str) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        message = f"{place} holds {cell!r}, expected a number or nothing"
        raise ReportError(message) from None


def _last_of_each(table: Table, keys: tuple[str, ...]) -> Table:
    # A resumed run repeats what came after its checkpoint. The row written last is
    # the one that the run went on from.
    rows = np.stack([table[key][::-1] for key in keys], axis=1)
    _, from_end = np.unique(rows, axis=0, return_index=True)
    keep = len(rows) - 1 - from_end
    return {name: values[keep] for name, values in table.items()}

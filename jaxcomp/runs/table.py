"""Tables of a run as CSV, and the metrics in them."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.files import write_atomically
from jaxcomp.core.units import (
    bytes_text,
    number_text,
    percent_text,
    seconds_text,
    times_text,
)
from jaxcomp.runs.folder import RunError

Table = dict[str, np.ndarray]
Append = Callable[[dict[str, Any]], None]


class Schema(NamedTuple):
    """The columns of a table, and which of them are keys."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]  # whole numbers that tell rows apart, the leading one first
    digits: int = 8  # of a float
    labels: tuple[str, ...] = ()  # columns of text, which tell rows apart too


def read_table(path: Path, schema: Schema) -> Table:
    """The columns of a table as arrays, sorted by its keys.

    Args:
      path: the file; a missing one is a table without rows.
      schema: the columns to read; what the file lacks is NaN. Of rows with equal keys
        the last counts: a resumed run repeats what came after its checkpoint.

    Raises:
      RunError: a row of another length, a cell that is no number, or a missing key.

    Example:
      >>> read_table(Path("nowhere.csv"), Schema(("step",), ("step",)))["step"].size
      0
    """
    _, rows = _read(path, schema)
    cells = [
        [_number(row.get(name, ""), path, line) for name in schema.columns]
        for line, row in enumerate(rows, start=2)
    ]
    found = np.array(cells, np.float64).reshape(len(rows), len(schema.columns))
    table = dict(zip(schema.columns, found.T, strict=True))
    keys = np.stack([table[key][::-1] for key in schema.keys], axis=1)
    _, from_end = np.unique(keys, axis=0, return_index=True)
    return {name: values[len(rows) - 1 - from_end] for name, values in table.items()}


def read_header(path: Path) -> list[str]:
    """The names of a table's columns, none where there is no whole header."""
    return next(iter(_lines(path)), [])


def read_rows(path: Path) -> list[dict[str, str]]:
    """The text of each whole row by the names of its columns, in the order of the file.

    Example:
      >>> read_rows(Path("nowhere.csv"))
      []
    """
    header, *rows = _lines(path) or [[]]
    return [dict(zip(header, row, strict=False)) for row in rows]


def open_table(
    path: Path,
    schema: Schema,
    keeps: Callable[[dict[str, int]], bool],
    figures: Sequence[str] = (),
) -> Append:
    r"""A function that appends a row to a table, of which some rows are kept.

    Rows keep their text, and also the columns that another version has written.

    Args:
      path: the file; made where it is missing.
      schema: the columns of the rows to come.
      keeps: of a row's keys, whether it is part of the run. What came after the
        checkpoint that a run goes on from is written again.
      figures: further columns.

    Example:
      >>> import tempfile
      >>> schema = Schema(("step", "loss"), ("step",))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder) / "steps.csv"
      ...     _ = path.write_text("step,old\n1,a\n2,b\n3,")
      ...     append = open_table(path, schema, lambda row: row["step"] <= 1)
      ...     append({"step": 2, "loss": 0.25})
      ...     print(path.read_text())
      step,loss,old
      1,,a
      2,0.25,
      <BLANKLINE>
    """
    header, rows = _read(path, schema)
    columns = list(dict.fromkeys([*schema.columns, *figures, *header]))
    kept: dict[tuple[int | str, ...], dict[str, str]] = {}
    for row in rows:
        keys = {name: int(float(row[name])) for name in schema.keys}
        if keeps(keys):
            labels = [row[name] for name in schema.labels]
            kept[(*keys.values(), *labels)] = row
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(kept.values())
    write_atomically(path, text.getvalue())

    def append(row: dict[str, Any]) -> None:
        shown = {name: _shown(value, schema.digits) for name, value in row.items()}
        with open(path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns, restval="").writerow(shown)

    return append


def _read(path: Path, schema: Schema) -> tuple[list[str], list[dict[str, str]]]:
    """The header, and each whole row by its names."""
    lines = _lines(path)
    if not lines:
        return [], []
    header, *rows = lines
    for key in schema.keys:
        if key not in header:
            raise RunError(
                f"no column {key!r} in {path}: the first line is {','.join(header)!r}, "
                f"expected {','.join(schema.columns)!r}"
            )
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise RunError(
                f"line {number} of {path} has {len(row)} cells, expected {len(header)} "
                "as in its first line: mend or remove that line"
            )
    found = [dict(zip(header, row, strict=True)) for row in rows]
    for number, row in enumerate(found, start=2):
        for key in schema.keys:
            if not np.isfinite(_number(row[key], path, number)):
                cells = list(row.values())
                raise RunError(f"line {number} of {path} names no {key}: {cells!r}")
    return header, found


def _lines(path: Path) -> list[list[str]]:
    """The cells of all whole lines."""
    if not path.is_file():
        return []
    # A damaged byte then shows up in the message about the cell it is in.
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1].splitlines()
    found: list[list[str]] = []
    try:
        # Each alone: a quote that is not closed would take in the lines after it.
        for line in whole:
            found += csv.reader([line], strict=True)
    except csv.Error as error:
        message = f"line {len(found) + 1} of {path} is no row ({error})"
        raise RunError(f"{message}: mend or remove that line") from None
    return found


def _number(cell: str, path: Path, line: int) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        message = f"line {line} of {path} holds {cell!r}, expected a number or nothing"
        raise RunError(message) from None


def _shown(value: Any, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


class Metric(NamedTuple):
    """A figure of an epoch: a column of metrics.csv, and of the report's table.

    Figures of steps are means over the workers of all processes.
    """

    name: str
    heading: str = ""  # in the report; "" where it is not shown
    text: Callable[[float], str] = number_text
    of_step: str = ""  # the figure of steps that it sums up; "": known at the end
    over_steps: str = "mean"  # of the steps that have it; or "last", or "sum"


METRICS = (
    Metric("epoch", "epoch"),
    Metric("step", "step"),
    Metric("examples"),
    Metric("seconds", "time", seconds_text),
    Metric("learning_rate", "learning rate"),
    Metric("train_loss", "train loss", of_step="loss"),
    Metric("train_accuracy", "train accuracy", percent_text, "accuracy"),
    Metric("test_loss", "test loss"),
    Metric("test_accuracy", "test accuracy", percent_text),
    Metric("own_accuracy", "own accuracy", percent_text),
    Metric("worst_accuracy", "worst own accuracy", percent_text),
    Metric("wire_bytes_per_step", "message / step", bytes_text),
    Metric("dense_bytes_per_step"),
    Metric("bytes_left", "left a worker", bytes_text),  # since the start of the run
    Metric("exact_bytes_left"),  # likewise, with `exact`
    Metric("times_fewer", "ratio", times_text),  # exact_bytes_left / bytes_left
    Metric("simulated"),
    Metric("traced"),
    Metric("residual_norm", "residual norm", number_text, "residual_norm", "last"),
    Metric("gradient_error", "gradient error", number_text, "gradient_error"),
    Metric("consensus_distance", "consensus distance"),
    Metric("distance", "distance from start"),  # of the evaluated parameters
    Metric("overflow", "overflow", number_text, "overflow"),
    Metric("overflowed_steps", "overflowed steps", number_text, "overflowed", "sum"),
    Metric("loss_scale", "loss scale", number_text, "loss_scale", "last"),
    Metric("skipped_steps", "skipped steps", number_text, "skipped", "sum"),
)
EPOCHS = Schema(tuple(metric.name for metric in METRICS), ("epoch", "step"))
STEPS = Schema(
    (
        *("step", "epoch", "loss", "accuracy", "learning_rate", "data_seconds"),
        *("step_seconds", "wait_seconds", "images_per_second", "gradient_norm"),
        *("residual_norm", "gradient_error"),
        "skipped",  # the share of the workers that left the step out
    ),
    ("step",),
)
# The parts of a step in breakdown.csv.
PARTS = ("data", "forward_backward", "compress", "communicate", "decode", "update")
# Of a leaf, error is |given - sent|^2 / |given|^2, the mean over workers.
LAYERS = Schema(
    ("epoch", "leaf", "elements", "gradient_norm", "error"),
    ("epoch",),
    labels=("leaf",),
)

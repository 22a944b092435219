"""What a convex run leaves in its folder: metrics.csv, and a state to go on from."""

import csv
import hashlib
import io
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp.convex.simulation import Crew
from jaxcomp.files import write_atomically
from jaxcomp.trees import name_of

__all__ = [
    "Row",
    "State",
    "append_row",
    "load_state",
    "read_rows",
    "save_state",
    "write_rows",
]


class Row(NamedTuple):
    """An evaluation: a line of metrics.csv."""

    seed: int
    step: int
    epoch: float
    bytes_sent: int  # by one worker since the start
    suboptimality: float  # f(mean of the workers' averages) - f*
    worst_suboptimality: float  # of one worker's average
    consensus_distance: float  # sqrt(mean over workers |x_i - mean|^2)
    learning_rate: float  # of the last step


class State(NamedTuple):
    """Where a run stands: at an evaluation."""

    crew: Crew
    repetition: int  # from 0
    step: int
    rows: int  # of metrics.csv


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.csv before the first that a kill has cut off.

    Example:
        >>> import tempfile
        >>> row = Row(0, 10, 0.5, 1920, 0.25, 0.5, 0.125, 1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "metrics.csv"
        ...     write_rows(path, [row])
        ...     append_row(path, row._replace(step=20))
        ...     [row.step for row in read_rows(path)]
        [10, 20]
    """
    if not path.exists():
        return []
    rows, kinds = [], Row.__annotations__
    with open(path, newline="", encoding="utf-8") as file:
        for found in csv.DictReader(file):
            try:
                row = Row(**{name: kinds[name](found[name]) for name in Row._fields})
            except (KeyError, TypeError, ValueError):  # no field, or part of a number
                break
            rows.append(row)
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A metrics.csv with these rows and no others."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(Row._fields)
    writer.writerows(map(_shown, rows))
    write_atomically(path, text.getvalue())


def append_row(path: Path, row: Row) -> None:
    """One more row of a metrics.csv."""
    with open(path, "a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(_shown(row))


def save_state(path: Path, state: State) -> None:
    """Write a state, with its SHA-256, so that a kill leaves the old one or the new."""
    arrays = {name: np.asarray(leaf) for name, leaf in _named(state).items()}
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, sha256=_digest(arrays), **arrays)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(whole.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_state(path: Path, like: Crew) -> State | None:
    """The state in a file, or None if there is none that is whole.

    A run without its state starts again and comes to the same figures.

    Args:
      path: the file.
      like: a crew of the same config.
    """
    if not path.exists():
        return None
    empty = State(like, 0, 0, 0)
    try:
        # Of a damaged file NumPy would leave open what it opened itself.
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("sha256")) != _digest(arrays):
            raise ValueError("it has changed since it was written")
        leaves = [_fitting(arrays, name, x) for name, x in _named(empty).items()]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        message = f"{path} is damaged ({error}): the run starts again"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    read: State = jax.tree.unflatten(jax.tree.structure(empty), leaves)
    return State(read.crew, int(read.repetition), int(read.step), int(read.rows))


def _fitting(arrays: dict[str, np.ndarray], name: str, like: Any) -> np.ndarray:
    """A stored array, which knows bfloat16 only as two bytes."""
    wanted = np.asarray(like)
    if arrays[name].shape != wanted.shape:
        raise ValueError(f"{name} is {arrays[name].shape}, not {wanted.shape}")
    return arrays[name].view(wanted.dtype)


def _named(state: State) -> dict[str, Any]:
    """Path -> leaf: names that a person can read, and nothing pickled."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {name_of(p, separator="."): x for p, x in leaves}


def _digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def _shown(row: Row) -> list[str]:
    return [f"{v:.10g}" if isinstance(v, float) else str(v) for v in row]

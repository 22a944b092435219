"""The files of a convex run: metrics.csv, and the state from which it is resumed."""

import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp.base import is_report
from jaxcomp.convex.simulation import Crew
from jaxcomp.files import CheckpointError, write_atomically
from jaxcomp.runs.metrics import EVALUATIONS, Evaluation
from jaxcomp.runs.table import read_table
from jaxcomp.trees import name_of

__all__ = ["State", "load_state", "read_rows", "save_state"]


# 1: without its number, and with what the last step reported.
FORMAT = 2


class State(NamedTuple):
    """What a run is resumed from: all workers after the steps before an evaluation."""

    crew: Crew
    repetition: int  # from 0
    step: int
    rows: int  # written to metrics.csv so far


def read_rows(path: Path) -> list[Evaluation]:
    """The evaluations in a metrics.csv, in the order in which they were made.

    Example:
      >>> import tempfile
      >>> from jaxcomp.runs.table import open_table
      >>> row = Evaluation(0, 10, 0.5, 1920, 0.25, 0.5, 0.125, 1.0, 192.0, 9.0)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder) / "metrics.csv"
      ...     append = open_table(path, EVALUATIONS, lambda row: True)
      ...     append(row._asdict())
      ...     read_rows(path) == [row]
      True
    """
    table = read_table(path, EVALUATIONS)
    kinds = Evaluation.__annotations__.values()
    return [
        Evaluation(*(kind(value) for kind, value in zip(kinds, row, strict=True)))
        for row in zip(*table.values(), strict=True)
    ]


def save_state(path: Path, state: State) -> None:
    """Write a state, so that a kill leaves the old file or the new one.

    The file also holds the number of its format and a SHA-256 of everything else in it.
    What the last step reported is left out, as in the checkpoints of training.
    """
    named, _ = jax.tree_util.tree_flatten_with_path(state, is_report)
    arrays = {_name(p): np.asarray(x) for p, x in named if not is_report(x)}
    arrays["format"] = np.asarray(FORMAT)
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, sha256=_digest(arrays), **arrays)
    write_atomically(path, whole.getvalue())


def load_state(path: Path, like: Crew) -> State | None:
    """The state in a file, or None if there is no file or it is damaged.

    A run without its state starts again and comes to the same figures.

    Args:
      path: the file.
      like: a crew of the same config; what steps report is taken from it.

    Raises:
      CheckpointError: a later version of jaxcomp wrote the file.
    """
    if not path.exists():
        return None
    try:
        # NumPy would leave open a damaged file that it opened itself.
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("sha256")) != _digest(arrays):
            raise ValueError("it has changed since it was written")
        version = int(arrays.get("format", 1))
        if version <= FORMAT:
            return _restored(arrays, like)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        message = f"{path} is damaged ({error}): the run starts again"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    raise CheckpointError(
        f"{path} was written by a later jaxcomp, in format {version}; this one knows "
        f"those up to {FORMAT}. Update jaxcomp, or take another folder"
    )


def _restored(arrays: dict[str, np.ndarray], like: Crew) -> State:
    read: State = jax.tree_util.tree_map_with_path(
        lambda p, x: x if is_report(x) else _fitting(arrays, _name(p), x),
        State(like, 0, 0, 0),
        is_leaf=is_report,
    )
    return State(read.crew, int(read.repetition), int(read.step), int(read.rows))


def _fitting(arrays: dict[str, np.ndarray], name: str, like: Any) -> np.ndarray:
    """The stored array of a leaf. NumPy stores bfloat16 as two bytes without a type."""
    wanted = np.asarray(like)
    if arrays[name].shape != wanted.shape:
        raise ValueError(f"{name} is {arrays[name].shape}, not {wanted.shape}")
    return arrays[name].view(wanted.dtype)


def _name(path: Any) -> str:
    return name_of(path, separator=".")


def _digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()

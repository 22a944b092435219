"""What a convex run leaves in its folder: metrics.csv, and a state to go on from."""

import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp.convex.simulation import Crew
from jaxcomp.files import write_atomically
from jaxcomp.runs.metrics import EVALUATIONS, Evaluation
from jaxcomp.runs.table import read_table
from jaxcomp.trees import name_of

__all__ = ["State", "load_state", "read_rows", "save_state"]


class State(NamedTuple):
    """Where a run stands: at an evaluation."""

    crew: Crew
    repetition: int  # from 0
    step: int
    rows: int  # of metrics.csv


def read_rows(path: Path) -> list[Evaluation]:
    """The evaluations in a metrics.csv, in the order in which a run comes to them.

    Example:
        >>> import tempfile
        >>> from jaxcomp.runs.table import open_table
        >>> row = Evaluation(0, 10, 0.5, 1920, 0.25, 0.5, 0.125, 1.0)
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
    """Write a state, with its SHA-256, so that a kill leaves the old one or the new."""
    arrays = {name: np.asarray(leaf) for name, leaf in _named(state).items()}
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, sha256=_digest(arrays), **arrays)
    write_atomically(path, whole.getvalue())


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

"""What a logger is, and what it is told of the run that it writes down."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Logger", "Opener", "Row", "RunSoFar", "numbers"]

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

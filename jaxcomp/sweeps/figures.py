"""The figures of a run, from its metrics.csv: at the end, and where it was best."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.errors import UserError
from jaxcomp.runs.table import Schema, Table, read_header, read_table
from jaxcomp.runs.units import times_fewer
from jaxcomp.specs import suggest

__all__ = ["Best", "check_column", "figures_of", "parse_best"]

_TABLE = "metrics.csv"
_PER_STEP = "wire_bytes_per_step"


class Best(NamedTuple):
    """Which figure says how good a run is."""

    column: str  # of metrics.csv
    sign: int  # 1 where more is better, -1 where less is

    @property
    def key(self) -> str:
        """Its name in `figures_of`."""
        return f"best_{self.column}"

    def score(self, figures: Mapping[str, float]) -> float:
        """More is better; -inf where the figure is not known.

        Example:
          >>> Best("test_loss", -1).score({"best_test_loss": 0.25})
          -0.25
        """
        score = self.sign * figures.get(self.key, math.nan)
        return -math.inf if math.isnan(score) else score


def parse_best(text: str) -> Best:
    """The rule by which runs are compared.

    Example:
      >>> parse_best("min test_loss")
      Best(column='test_loss', sign=-1)
    """
    signs = {"max": 1, "min": -1}
    sign, _, column = text.partition(" ")
    if sign not in signs or not column.isidentifier():
        message = "'max' or 'min' and a column of metrics.csv, such as 'min test_loss'"
        raise UserError(f"best is {message}, not {text!r}")
    return Best(column, signs[sign])


def check_column(best: Best, columns: Sequence[str]) -> None:
    """Refuse a rule by a column that the metrics.csv of a run does not have."""
    if best.column not in columns:
        hint = suggest(best.column, columns)
        raise UserError(f"{_TABLE} has no column {best.column!r}. {hint}")


def figures_of(folder: Path, best: Best) -> dict[str, float]:
    """The figures of a run: `final_COLUMN`, and where it was best `best_COLUMN`.

    Args:
      folder: of the run.
      best: decides where that was.

    Raises:
      UserError: the run's metrics.csv has no such column, or cannot be read.
    """
    path = folder / _TABLE
    columns = read_header(path)
    if not columns:
        return {}
    check_column(best, columns)
    keys = ("seed", "step") if "seed" in columns else ("step",)
    table = read_table(path, Schema(tuple(columns), keys))
    table = _mean_over_seeds(table) if "seed" in columns else table
    if not len(table["step"]):
        return {}
    if _PER_STEP in table:
        steps = np.diff(table["step"], prepend=0)
        table["bytes_sent"] = np.cumsum(np.nan_to_num(steps * table[_PER_STEP]))
    if "exact_bytes_left" in table:  # a convex run leaves the ratio to its readers
        pairs = zip(table["exact_bytes_left"], table["bytes_left"], strict=True)
        table["times_fewer"] = np.array([times_fewer(*pair) for pair in pairs])
    figures = {f"final_{name}": float(values[-1]) for name, values in table.items()}
    worth = best.sign * table[best.column]
    if not np.isnan(worth).all():
        place = int(np.nanargmax(worth))
        shown = [name for name in ("epoch", "step", best.column) if name in table]
        figures |= {f"best_{name}": float(table[name][place]) for name in shown}
    return figures


def _mean_over_seeds(table: Table) -> Table:
    """A convex run simulates several seeds; means of those that have come so far."""
    steps = np.unique(table["step"])
    groups = [table["step"] == step for step in steps]
    others = {name: values for name, values in table.items() if name != "seed"}
    return {n: np.array([v[g].mean() for g in groups]) for n, v in others.items()}

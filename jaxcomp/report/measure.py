"""The figure by which a run is judged: accuracy, or what its task names instead."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Run, holds_convex
from jaxcomp.report.units import UNITS, Unit

__all__ = ["Judged", "judged", "measure_name", "of_part"]


class Judged(NamedTuple):
    """A column by which runs are compared."""

    column: str  # of metrics.csv
    unit: Unit
    higher: bool  # whether more is better

    @property
    def title(self) -> str:
        """In words."""
        return self.column.replace("_", " ")

    def text(self, value: float) -> str:
        """A value as text."""
        return UNITS[self.unit].value(value)

    def best(self, values: np.ndarray) -> int:
        """The place of the best number, the first of equal ones.

        Example:
          >>> Judged("test_loss", "number", False).best(np.array([np.nan, 2, 1, 1]))
          2
        """
        return int(np.nanargmax(values if self.higher else -values))


def measure_name(run: Run) -> str:
    """What the run's task is measured by; its columns are named after it.

    Example:
      >>> measure_name(Run("a", {}, {"measure": "perplexity"}, {}))
      'perplexity'
    """
    return str(run.environment.get("measure") or "accuracy")


def of_part(run: Run, part: str) -> Judged:
    """The measure of the run's task.

    Args:
      run: of training.
      part: train or test, or the mean of the workers' own models or the worst of them.

    Example:
      >>> of_part(Run("a", {}, {}, {}), "worst").title
      'worst accuracy'
    """
    name = measure_name(run)
    # Other measures, such as perplexity, are better where they are lower.
    is_share = name == "accuracy"
    return Judged(f"{part}_{name}", "percent" if is_share else "number", is_share)


def judged(runs: Sequence[Run]) -> Judged:
    """The first figure that all runs have recorded: of the test set before training."""
    if holds_convex(runs[0]):
        return Judged("suboptimality", "number", higher=False)
    measures = [of_part(runs[0], part) for part in ("test", "train")]
    losses = [Judged(f"{part}_loss", "number", False) for part in ("test", "train")]
    for measure in (*measures, *losses):
        if all(_has(run, measure.column) for run in runs):
            return measure
    return measures[0]


def _has(run: Run, column: str) -> bool:
    return column in run.metrics and bool(np.isfinite(run.metrics[column]).any())

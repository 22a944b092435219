"""The figures of convex runs over their seeds."""

from collections.abc import Sequence

import numpy as np

from jaxcomp.runs.metrics import EVALUATIONS
from jaxcomp.runs.table import Table

__all__ = ["joined"]


def joined(tables: Sequence[Table]) -> Table:
    """Join the seeds of convex runs into one row for each evaluated step.

    Args:
      tables: metrics.csv of runs that differ in the seed alone.

    Returns:
      The columns of `EVALUATIONS`, as medians over the seeds; for each of them two
      more, which end in `_low` and `_high`, the range; and `seeds`, the number of seeds
      that reached the step (fewer at the later steps of a run that was killed).

    Example:
      >>> columns = dict.fromkeys(EVALUATIONS.columns, np.zeros(3))
      >>> columns |= {"step": np.array([5.0, 5.0, 9.0])}
      >>> columns |= {"suboptimality": np.array([0.1, 0.3, 0.05])}
      >>> found = joined([columns])
      >>> found["seeds"].tolist(), found["suboptimality"].tolist()
      ([2, 1], [0.2, 0.05])
      >>> found["suboptimality_high"].tolist()
      [0.3, 0.05]
    """
    whole = {
        name: np.concatenate([table[name] for table in tables])
        for name in EVALUATIONS.columns
    }
    groups = [
        np.flatnonzero(whole["step"] == step) for step in np.unique(whole["step"])
    ]
    ways = {"": np.median, "_low": np.min, "_high": np.max}
    found = {
        f"{name}{end}": np.array([reduce(values[group]) for group in groups])
        for name, values in whole.items()
        for end, reduce in ways.items()
    }
    return found | {"seeds": np.array([group.size for group in groups])}

"""The figures of a convex run over its seeds."""

import numpy as np

from jaxcomp.report.run_folder import Run
from jaxcomp.runs.metrics import EVALUATIONS
from jaxcomp.runs.table import Table

__all__ = ["compression", "evaluations"]


def evaluations(run: Run) -> Table:
    """Join the seeds of a convex run into one row per evaluated step.

    Args:
      run: from `read_convex`.

    Returns:
      The columns of `EVALUATIONS`, as medians over the seeds, and three more: `seeds`,
      the number of seeds that reached the step (fewer at the later steps of a run that
      was killed), and `lowest` and `highest`, the range of the suboptimality.

    Example:
      >>> columns = dict.fromkeys(EVALUATIONS.columns, np.zeros(3))
      >>> columns |= {"step": np.array([5.0, 5.0, 9.0])}
      >>> columns |= {"suboptimality": np.array([0.1, 0.3, 0.05])}
      >>> found = evaluations(Run("run", {}, {}, columns))
      >>> found["seeds"].tolist(), found["suboptimality"].tolist()
      ([2, 1], [0.2, 0.05])
      >>> found["highest"].tolist()
      [0.3, 0.05]
    """
    step = run.metrics["step"]
    groups = [np.flatnonzero(step == one) for one in np.unique(step)]
    levels = [run.metrics["suboptimality"][group] for group in groups]
    medians = {
        name: np.array([np.median(run.metrics[name][group]) for group in groups])
        for name in EVALUATIONS.columns
    }
    return medians | {
        "seeds": np.array([len(group) for group in groups]),
        "lowest": np.array([np.min(values) for values in levels]),
        "highest": np.array([np.max(values) for values in levels]),
    }


def compression(run: Run) -> float:
    """How many times fewer bytes were sent than without compression.

    Args:
      run: from `read_convex`.

    Returns:
      The factor, NaN if it was not recorded.

    Example:
      >>> facts = {"wire_bytes_per_step": [10, 30], "plain_bytes_per_step": [100, 100]}
      >>> compression(Run("run", {}, facts, {}))
      5.0
    """
    keys = ("plain_bytes_per_step", "wire_bytes_per_step")
    # Methods that do not send at every step list the steps of one round.
    plain, wire = (run.environment.get(key) for key in keys)
    if not (isinstance(plain, list) and isinstance(wire, list) and plain and wire):
        return float("nan")
    sent = float(np.mean(wire))
    return float(np.mean(plain)) / sent if sent else float("nan")

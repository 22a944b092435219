"""From the tables of runs to the points of curves, over epochs, seconds and bytes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxcomp.report.run_folder import Run
from jaxcomp.runs.table import Table

__all__ = ["MANY", "Points", "message_bytes", "points_of", "smooth"]

# The most points of a curve, alone and among others.
MANY, _FEW = 120, 48


class Points(NamedTuple):
    """A curve with all that it may be drawn over; one entry for each point."""

    step: np.ndarray
    across: Table  # epoch, seconds and bytes; NaN where it was not recorded
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray  # that a point is the mean of


def points_of(
    runs: Sequence[Run], column: str, table: str = "metrics", *, alone: bool = True
) -> Points:
    """The curve of a column, over the runs of a group.

    Args:
      runs: one run, or several that differ in the seed.
      column: of the table.
      table: "metrics" or "steps".
      alone: draw every detail: where there are more rows than points, a point is the
        mean of neighbouring rows, and its band reaches from the lowest to the highest.

    Returns:
      The mean over the runs; with several runs, the band is their range.
    """
    is_alone = alone and len(runs) == 1
    curves = [
        _curve(run, column, table, MANY if is_alone else _FEW, band=is_alone)
        for run in runs
    ]
    return curves[0] if len(curves) == 1 else _joined(curves)


def smooth(values: np.ndarray, most: int) -> list[np.ndarray]:
    """Neighbouring rows in as many groups as there may be points.

    Example:
      >>> [group.tolist() for group in smooth(np.zeros(5), 2)]
      [[0, 1, 2], [3, 4]]
    """
    return np.array_split(np.arange(values.size), min(most, max(1, values.size)))


def message_bytes(run: Run) -> np.ndarray:
    """The bytes of all messages of one worker by the end of each epoch.

    Args:
      run: from `read_run`.

    Example:
      >>> columns = {"step": np.array([10.0, 20.0, 25.0])}
      >>> columns["wire_bytes_per_step"] = np.array([100.0, 100.0, 40.0])
      >>> message_bytes(Run("run", {}, {}, columns))
      array([1000., 2000., 2200.])
    """
    # The bytes of a step may change between epochs, so the total of the last epoch
    # is not its bytes per step times all steps.
    steps_of_epoch = np.diff(run.metrics["step"], prepend=0.0)
    return np.cumsum(steps_of_epoch * run.metrics["wire_bytes_per_step"])


def _curve(run: Run, column: str, table: str, most: int, *, band: bool) -> Points:
    rows = run.steps if table == "steps" else run.metrics
    seen = np.flatnonzero(np.isfinite(rows[column])) if column in rows else []
    steps, values = (rows[name][seen] for name in ("step", column))
    groups = [group for group in smooth(steps, most) if group.size]
    step = np.array([steps[group[-1]] for group in groups])
    value, low, high = (
        np.array([reduce(values[group]) for group in groups])
        for reduce in (np.mean, np.min, np.max)
    )
    if not band:
        low = high = value
    across = {
        "epoch": _at(step, run.metrics["step"], run.metrics["epoch"]),
        "seconds": _at(step, run.metrics["step"], run.metrics["seconds"]),
        "bytes": _at(step, run.metrics["step"], run.metrics["bytes_left"]),
        "step": step,
    }
    return Points(step, across, value, low, high, np.ones(step.size))


def _at(steps: np.ndarray, known: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Totals that are known at the ends of epochs, at other steps.

    They grow evenly within an epoch, and after the last one as in it.

    Example:
      >>> _at(np.array([5.0, 10.0, 15.0, 25.0]), np.array([10.0, 20.0]), np.arange(2.0))
      array([0. , 0. , 0.5, 1.5])
    """
    starts, sums = np.append(0.0, known), np.append(0.0, totals)
    found = np.interp(steps, starts, sums)
    slope = (sums[-1] - sums[-2]) / (starts[-1] - starts[-2])
    return np.where(steps > starts[-1], sums[-1] + slope * (steps - starts[-1]), found)


def _joined(curves: Sequence[Points]) -> Points:
    """The mean of curves at each step, and their range."""
    steps = np.concatenate([curve.step for curve in curves])
    values = np.concatenate([curve.value for curve in curves])
    groups = [np.flatnonzero(steps == step) for step in np.unique(steps)]

    def over(reduce: Callable[[np.ndarray], float], parts: np.ndarray) -> np.ndarray:
        return np.array([reduce(parts[group]) for group in groups])

    across = {
        name: over(np.mean, np.concatenate([curve.across[name] for curve in curves]))
        for name in curves[0].across
    }
    return Points(
        np.unique(steps),
        across,
        over(np.mean, values),
        over(np.min, values),
        over(np.max, values),
        over(np.size, values),
    )

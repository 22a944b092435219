"""Read the run folders of the convex testbed, and join their seeds."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.report.run_folder import read_metrics
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.metrics import EVALUATIONS
from jaxcomp.runs.table import Table


class ConvexRun(NamedTuple):
    """What the folder of a convex run holds; like `Run`."""

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: Table  # the columns of `EVALUATIONS`, an entry per evaluation of each seed


class Evaluations(NamedTuple):
    """A run over its seeds; arrays have one entry per evaluated step."""

    seeds: np.ndarray  # how many came so far
    step: np.ndarray
    epoch: np.ndarray
    sent: np.ndarray  # bytes, by one worker since the start
    middle: np.ndarray  # of the suboptimality; this and the others are medians
    low: np.ndarray
    high: np.ndarray
    worst: np.ndarray
    distance: np.ndarray
    rate: np.ndarray


def read_convex(folder: str | os.PathLike[str]) -> ConvexRun:
    r"""The convex run in a folder, also one that was killed while it wrote.

    Args:
      folder: of a convex run.

    Raises:
      RunError: there is no complete evaluation in metrics.csv.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = "seed,step,suboptimality\n0,10,0.25\n0,20,0.125\n0,30,0."
        ...     _ = Path(folder, "metrics.csv").write_text(table)
        ...     run = read_convex(folder)
        >>> run.metrics["suboptimality"]
        array([0.25 , 0.125])
    """
    path = Path(folder)
    return ConvexRun(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=read_metrics(path, EVALUATIONS, "evaluation"),
    )


def evaluations(run: ConvexRun) -> Evaluations:
    """Joins the seeds of a run: medians, and the range of the suboptimality.

    Args:
        run: The run.

    Returns:
        The evaluations, in the order of their steps. A run that was killed has fewer
        seeds at its later steps.

    >>> columns = dict.fromkeys(EVALUATIONS.columns, np.zeros(3))
    >>> columns |= {"step": np.array([5.0, 5.0, 9.0])}
    >>> columns |= {"suboptimality": np.array([0.1, 0.3, 0.05])}
    >>> found = evaluations(ConvexRun("run", {}, {}, columns))
    >>> found.seeds.tolist(), found.middle.tolist(), found.high.tolist()
    ([2, 1], [0.2, 0.05], [0.3, 0.05])
    """
    metrics = run.metrics
    steps = np.unique(metrics["step"])
    groups = [np.flatnonzero(metrics["step"] == step) for step in steps]

    def medians(name: str) -> np.ndarray:
        return np.array([np.median(metrics[name][group]) for group in groups])

    found = [metrics["suboptimality"][group] for group in groups]
    return Evaluations(
        seeds=np.array([len(group) for group in groups]),
        step=steps,
        epoch=medians("epoch"),
        sent=medians("bytes_sent"),
        middle=medians("suboptimality"),
        low=np.array([np.min(values) for values in found]),
        high=np.array([np.max(values) for values in found]),
        worst=medians("worst_suboptimality"),
        distance=medians("consensus_distance"),
        rate=medians("learning_rate"),
    )


def compression(run: ConvexRun) -> float:
    """How many times fewer bytes were sent than without compression.

    Args:
        run: The run.

    Returns:
        The factor, NaN if it was not recorded.

    >>> facts = {"wire_bytes_per_step": [10, 30], "plain_bytes_per_step": [100, 100]}
    >>> compression(ConvexRun("run", {}, facts, {}))
    5.0
    """
    keys = ("plain_bytes_per_step", "wire_bytes_per_step")
    # Methods that do not send at every step list the steps of one round.
    plain, wire = (run.environment.get(key) for key in keys)
    if not (isinstance(plain, list) and isinstance(wire, list) and plain and wire):
        return float("nan")
    sent = float(np.mean(wire))
    return float(np.mean(plain)) / sent if sent else float("nan")

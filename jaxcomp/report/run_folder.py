"""Read the files of a run folder into plain arrays and dicts."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.metrics import EPOCHS, STEPS
from jaxcomp.runs.table import Table, read_header, read_table


class Run(NamedTuple):
    """What a run folder holds.

    Attributes:
        name: Name of the folder.
        config: Content of `config.json`, empty if the file is missing or cut off.
        environment: Content of `environment.json`, empty likewise.
        metrics: One array per column of `metrics.csv`, one entry per epoch. Every
            column of `EPOCHS` is there; what the file lacks is NaN.
        steps: The same for `steps.csv` and `STEPS`, one entry per logged
            step; arrays of length 0 if the file is missing.
    """

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: Table
    steps: Table


def read_run(folder: str | os.PathLike[str]) -> Run:
    r"""Reads a run folder.

    Args:
        folder: Folder that a trainer wrote.

    Returns:
        The run, also of a folder whose run was killed while it wrote.

    Raises:
        RunError: If there is no folder, or no complete epoch in `metrics.csv`, or
            if it is a folder of the convex testbed, which `read_convex` reads.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = "epoch,step,test_accuracy\n1,10,0.25\n2,20,0.5\n3,30,0."
    ...     _ = Path(folder, "metrics.csv").write_text(table)
    ...     run = read_run(folder)
    >>> run.metrics["test_accuracy"]
    array([0.25, 0.5 ])
    """
    path = Path(folder)
    if is_convex(path):
        raise RunError(f"{path} holds a convex run, expected a training run")
    metrics = read_table(path / "metrics.csv", EPOCHS)
    if not metrics["epoch"].size:
        raise RunError(
            f"no complete row in {path / 'metrics.csv'}: expected one row per epoch, "
            f"so the run has to finish its first epoch before it has a report"
        )
    return Run(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=metrics,
        steps=read_table(path / "steps.csv", STEPS),
    )


def is_convex(folder: str | os.PathLike[str]) -> bool:
    r"""Says whether a run folder is one of the convex testbed.

    Args:
        folder: The run folder.

    Returns:
        Whether its config names a problem, or else its table a suboptimality.

    Raises:
        RunError: If there is no folder with a `metrics.csv`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "metrics.csv").write_text("seed,step,suboptimality\n")
    ...     is_convex(folder)
    True
    """
    path = Path(folder)
    if not path.is_dir():
        raise RunError(f"no run folder at {path}: expected a folder of a trainer")
    if not (path / "metrics.csv").is_file():
        raise RunError(
            f"no metrics.csv in {path}: expected the run folder of a trainer, which "
            f"holds config.json, environment.json, metrics.csv and steps.csv"
        )
    # The config may be missing or cut off; the table then says it.
    header = read_header(path / "metrics.csv")
    return "problem" in read_json(path / "config.json") or "suboptimality" in header

"""A run folder as plain arrays and dicts."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.metrics import EPOCHS, STEPS
from jaxcomp.runs.table import Schema, Table, read_header, read_table

__all__ = ["Run", "is_convex", "read_metrics", "read_run"]


class Run(NamedTuple):
    """What the folder of a training run holds."""

    name: str  # of the folder
    config: dict[str, Any]  # config.json; empty if it is missing or cut off
    environment: dict[str, Any]  # environment.json; likewise
    metrics: Table  # the columns of `EPOCHS`; NaN for what the file lacks
    steps: Table  # those of `STEPS`; arrays of length 0 if there is no file


def read_run(folder: str | os.PathLike[str]) -> Run:
    r"""The run in a folder, also one that was killed while it wrote.

    Args:
      folder: of a training run.

    Raises:
      RunError: there is no folder, or no complete epoch in metrics.csv, or it is one of
        the convex testbed, which `read_convex` reads.

    Example:
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
    return Run(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=read_metrics(path, EPOCHS, "epoch"),
        steps=read_table(path / "steps.csv", STEPS),
    )


def read_metrics(folder: Path, schema: Schema, row: str) -> Table:
    """metrics.csv of a run of any kind, which has a row or more.

    Args:
      folder: of the run.
      schema: of the table.
      row: what a row is of, for the message where there is none.
    """
    metrics = read_table(folder / "metrics.csv", schema)
    if not metrics["step"].size:
        raise RunError(
            f"no complete row in {folder / 'metrics.csv'}: expected one row per {row}, "
            f"so the run has to finish its first {row} before it has a report"
        )
    return metrics


def is_convex(folder: str | os.PathLike[str]) -> bool:
    r"""Whether a run folder is one of the convex testbed.

    Its config names a problem; where that is lost, its table names a suboptimality.

    Raises:
      RunError: there is no folder with a metrics.csv.

    Example:
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
    header = read_header(path / "metrics.csv")
    return "problem" in read_json(path / "config.json") or "suboptimality" in header

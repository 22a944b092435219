"""Read the folder of a run as plain arrays and dicts."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.metrics import EPOCHS, EVALUATIONS, STEPS
from jaxcomp.runs.table import Schema, Table, read_header, read_rows, read_table

# Tables that a run writes if it is asked to; their cells are names as well as numbers.
_OPTIONAL = ("breakdown", "layers")

__all__ = ["Run", "holds_convex", "is_convex", "read_any", "read_convex", "read_run"]


class Run(NamedTuple):
    """What the folder of a run holds."""

    name: str  # of the folder
    config: dict[str, Any]  # config.json; empty if it is missing or cut off
    environment: dict[str, Any]  # environment.json; likewise
    # Columns of metrics.csv: those of `EPOCHS`, or of `EVALUATIONS` in a convex run.
    # A column that the file lacks is NaN.
    metrics: Table
    steps: Table = {}  # steps.csv of a training run; without the file it has no rows
    # Rows of breakdown.csv and layers.csv, as texts by column; no rows without a file.
    others: dict[str, list[dict[str, str]]] = {}


def read_run(folder: str | os.PathLike[str]) -> Run:
    r"""Read a training run, also one that was killed while it wrote.

    Args:
      folder: of the run.

    Raises:
      RunError: there is no such folder, its metrics.csv holds no complete epoch, or it
        is the folder of a convex run, which `read_convex` reads.

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
    own = str(read_json(path / "environment.json").get("measure") or "accuracy")
    parts = ("train", "test", "own", "worst", "ema")
    run = _read(path, _with(EPOCHS, *(f"{part}_{own}" for part in parts)), "epoch")
    others = {name: read_rows(path / f"{name}.csv") for name in _OPTIONAL}
    steps = read_table(path / "steps.csv", _with(STEPS, own))
    return run._replace(steps=steps, others=others)


def read_convex(folder: str | os.PathLike[str]) -> Run:
    r"""Read a run of the convex testbed, also one that was killed while it wrote.

    Args:
      folder: of the run.

    Raises:
      RunError: its metrics.csv holds no complete evaluation.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     table = "seed,step,suboptimality\n0,10,0.25\n0,20,0.125\n0,30,0."
      ...     _ = Path(folder, "metrics.csv").write_text(table)
      ...     run = read_convex(folder)
      >>> run.metrics["suboptimality"]
      array([0.25 , 0.125])
    """
    return _read(Path(folder), EVALUATIONS, "evaluation")


def read_any(folder: str | os.PathLike[str]) -> Run:
    """Read a run of either kind.

    Raises:
      RunError: there is no such folder, or nothing in it to show.
    """
    return read_convex(folder) if is_convex(folder) else read_run(folder)


def holds_convex(run: Run) -> bool:
    """Whether a run is one of the convex testbed."""
    return "suboptimality" in run.metrics


def is_convex(folder: str | os.PathLike[str]) -> bool:
    r"""Whether a folder holds a run of the convex testbed.

    The config of such a run names a problem. If the config is lost, the header of
    metrics.csv, which has a suboptimality, tells as much.

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


def _with(schema: Schema, *columns: str) -> Schema:
    """A schema with further columns, such as those of a task's own measure."""
    return schema._replace(columns=tuple(dict.fromkeys((*schema.columns, *columns))))


def _read(path: Path, schema: Schema, row: str) -> Run:
    """A run whose table has at least one row; `row` is what a row stands for."""
    metrics = read_table(path / "metrics.csv", schema)
    if not metrics["step"].size:
        raise RunError(
            f"no complete row in {path / 'metrics.csv'}: expected one row per {row}, "
            f"so the run has to finish its first {row} before it has a report"
        )
    return Run(
        name=path.resolve().name,
        config=read_json(path / "config.json"),
        environment=read_json(path / "environment.json"),
        metrics=metrics,
    )

"""The folder of a run: what was asked, where it ran, what came out.

config.json, environment.json, metrics.csv (a row for each epoch), steps.csv (a row for
each logged step) and checkpoints/. A folder belongs to one config.
"""

import csv
import datetime
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp._version import __version__
from jaxcomp.errors import UserError
from jaxcomp.files import write_atomically
from jaxcomp.report.run_folder import METRIC_COLUMNS, STEP_COLUMNS

__all__ = [
    "Table",
    "Tables",
    "open_run",
    "open_tables",
]

# What may differ where a run goes on, and why.
CHANGEABLE = {
    "checkpoint_every": "when it is saved changes no number of a run",
    "data_dir": "the same data may lie in another place",
    "keep_every": "what is kept changes no number of a run",
    "log_every": "what is logged changes no number of a run",
    "nonfinite": "a run that has stopped may go on and leave such steps out",
    "train_for": "a run that has ended may go on, with the schedule of a longer one",
}
# Settings that came later, and what runs did before: a folder without them has these.
ADDED = {"task": "classification"}


class Table(NamedTuple):
    """A CSV file that grows by rows."""

    append: Callable[[dict[str, Any]], None]


class Tables(NamedTuple):
    """The two tables of a run."""

    epochs: Table
    steps: Table


def open_run(
    folder: Path, config: dict[str, Any], facts: dict[str, Any] | None = None
) -> None:
    """Create a run folder, or check that it belongs to this config.

    Args:
      folder: the run folder.
      config: plain values.
      facts: what else environment.json says, such as the method in full.

    Raises:
      UserError: the folder holds a run with another config; says what differs.
    """
    path = folder / "config.json"
    if path.exists():
        _check_same(json.loads(path.read_text()), config, folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        environment = json.dumps({**_environment(), **(facts or {})}, indent=1)
        write_atomically(folder / "environment.json", environment)
    write_atomically(path, json.dumps(config, indent=1))


def open_tables(
    folder: Path, step: int, figures: Sequence[str] = (), *, writes: bool = True
) -> Tables:
    """metrics.csv and steps.csv without the rows after `step`.

    A run that goes on from a checkpoint writes those rows again.

    Args:
      folder: the run folder.
      step: where the run goes on.
      figures: further columns of steps.csv, those that the exchange names.
      writes: False on processes that only compute.
    """
    if not writes:
        silent = Table(lambda row: None)
        return Tables(silent, silent)
    return Tables(
        epochs=_open_table(folder / "metrics.csv", METRIC_COLUMNS, step),
        steps=_open_table(folder / "steps.csv", (*STEP_COLUMNS, *figures), step),
    )


def _open_table(path: Path, columns: tuple[str, ...], step: int) -> Table:
    rows = []
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if _is_whole(r, columns)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(row for row in rows if int(row["step"]) <= step)
    write_atomically(path, text.getvalue())

    def append(row: dict[str, Any]) -> None:
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writerow({name: _format(row[name]) for name in columns})

    return Table(append)


def _is_whole(row: dict[str, Any], columns: tuple[str, ...]) -> bool:
    """Whether a kill cut this row off while it was written."""
    return all(row.get(name) is not None for name in columns) and row["step"].isdigit()


def _format(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _check_same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Refuse to continue a run under another config."""
    missing = object()
    old, new = {**ADDED, **old}, {**ADDED, **new}
    differences = [
        f"  {key}: the folder has {_shown(old, key)}, you ask for {_shown(new, key)}"
        for key in sorted((old.keys() | new.keys()) - CHANGEABLE.keys())
        if old.get(key, missing) != new.get(key, missing)
    ]
    if differences:
        message = (
            f"{folder} holds a run with another config:\n"
            + "\n".join(differences)
            + "\n"
            "Use another --workdir, or the same config to go on with that run."
        )
        raise UserError(message)


def _shown(config: dict[str, Any], key: str) -> str:
    return repr(config[key]) if key in config else "nothing"


def _environment() -> dict[str, Any]:
    """Versions, devices and revision: what another person needs to see the same."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    return {
        "versions": {
            "python": platform.python_version(),
            "jaxcomp": __version__,
            **versions,
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "devices": [str(d) for d in jax.devices()],
        "processes": jax.process_count(),
        "git_revision": _git_revision(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def _git_revision() -> str | None:
    """Revision of the source tree the package runs from; None outside a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

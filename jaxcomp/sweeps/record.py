"""What a sweep knows of its runs, in sweep.json: a restart goes on from there."""

import datetime
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.files import write_atomically
from jaxcomp.runs.folder import note_fact, read_json
from jaxcomp.sweeps.settings import Setting

__all__ = [
    "RECORD",
    "Entry",
    "find_folder",
    "note_labels",
    "read_record",
    "write_record",
]

RECORD = "sweep.json"


class Entry(NamedTuple):
    """How far a run is."""

    state: str = "waiting"  # started | finished | failed
    failures: int = 0
    seconds: float = 0.0  # of its processes, all together
    error: str = ""  # the last line of its log, where it has failed

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed")


def read_record(folder: Path) -> dict[str, Entry]:
    """The entries of a sweep's runs by name; none in a new folder."""
    runs: Mapping[str, Any] = read_json(folder / RECORD).get("runs", {})
    return {name: Entry(**entry) for name, entry in runs.items()}


def write_record(folder: Path, file: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the record of a sweep, whole or not at all.

    Args:
      folder: of the sweep.
      file: that describes it.
      entries: of its runs.
    """
    runs = {name: entry._asdict() for name, entry in entries.items()}
    content = {"file": str(file.resolve()), "runs": runs}
    write_atomically(folder / RECORD, json.dumps(content, indent=1))


def note_labels(folder: Path, setting: Setting) -> None:
    """Let the folder of a run say what its sweep calls it: pages call it that, too.

    Args:
      folder: of the run.
      setting: its labels, and the keys of the config that they stand for.
    """
    if setting.labels:
        keys = sorted(setting.meant)
        note_fact(folder, "sweep", {"labels": dict(setting.labels), "keys": keys})


def find_folder(file: Path, out: Path | None, root: Path = Path("output")) -> Path:
    """The folder of a sweep: where it was begun, or else a new one with today's date.

    Args:
      file: that describes the sweep.
      out: the folder, where somebody has named it.
      root: below which others are.

    Raises:
      UserError: the folder that was named holds other things.

    Example:
      >>> str(find_folder(Path("a/digits.py"), Path("mine")))
      'mine'
    """
    if out is not None:
        if out.is_dir() and any(out.iterdir()) and not (out / RECORD).exists():
            message = f"{out} holds other things than a sweep: take a folder of its own"
            raise UserError(message)
        return out
    whole = str(file.resolve())
    begun = [p for p in root.glob(f"*/{RECORD}") if read_json(p).get("file") == whole]
    mine = [p.parent for p in begun if p.parent.name.startswith(f"{file.stem}-")]
    if mine:
        end = len(file.stem) + 11  # of the date; others of it have numbers
        return max(mine, key=lambda it: (it.name[:end], len(it.name), it.name))
    new = f"{file.stem}-{datetime.date.today().isoformat()}"
    names = itertools.chain([new], (f"{new}-{n}" for n in itertools.count(2)))
    return next(root / name for name in names if not (root / name).exists())

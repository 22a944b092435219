"""What lies in the folder of a checkpoint, and what a kill has left there."""

import os
import shutil
from pathlib import Path

from jaxcomp import files
from jaxcomp.files import CheckpointError

__all__ = ["ARRAYS", "BEGUN", "others", "path_of", "tidy"]

# A new checkpoint takes the name that the previous one does not have.
ARRAYS = ("arrays", "arrays_2")
_UNFINISHED = ".orbax-checkpoint-tmp"  # a suffix of orbax while it writes
BEGUN = f".{files.MANIFEST}.begun"  # exists while a checkpoint is written


def path_of(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder; refuses URLs and files."""
    if "://" in os.fspath(folder):
        message = f"{folder} is no folder of a file system: save to one, and copy that"
        raise CheckpointError(message)
    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file, and a checkpoint is a folder")
    return path


def others(folder: Path) -> list[str]:
    """Files in a folder that belong to no checkpoint, except hidden files."""
    if not folder.is_dir():
        return []
    known = files.listed(folder) & set(ARRAYS)
    ours = {*known, *_left(folder), *([files.MANIFEST] if known else [])}
    names = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    return sorted(names - ours)


def _left(folder: Path) -> list[str]:
    """Folders of arrays that a kill has left, and those of the previous checkpoint."""
    known = files.listed(folder) & set(ARRAYS)
    has_begun = bool(known) or (folder / BEGUN).exists()
    unfinished = [f"{name}{_UNFINISHED}" for name in ARRAYS]
    names = [*ARRAYS, *unfinished] if has_begun else unfinished
    return [n for n in names if n not in known and (folder / n).exists()]


def tidy(folder: Path) -> None:
    """Remove what a kill has left, and the previous checkpoint if there is one."""
    for gone in folder.glob(".arrays*.gone"):
        shutil.rmtree(gone)
    for name in _left(folder):
        # Renamed first, because a kill may interrupt the removal.
        shutil.rmtree((folder / name).rename(folder / f".{name}.gone"))
    for temporary in folder.glob(f".{files.MANIFEST}.*"):
        temporary.unlink()

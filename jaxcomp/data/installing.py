"""Put a prepared folder into its place, completely or not at all."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["install", "scratch_folder"]


@contextlib.contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as the target, so that renaming is atomic.

    Its name begins with a dot, so that nobody takes it for prepared data.

    Args:
      root: of all prepared data.
    """
    existed = root.exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=root) as folder:
            yield Path(folder)
    finally:
        if not existed and not any(root.iterdir()):
            root.rmdir()


def install(written: Path, folder: Path, old: Path) -> None:
    """Rename into place. An older folder goes to `old`, and back if this fails.

    Args:
      written: the new folder, complete.
      folder: its place.
      old: a path in the same scratch folder.
    """
    folder.parent.mkdir(exist_ok=True, parents=True)
    if folder.exists():
        folder.rename(old)
    try:
        written.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)

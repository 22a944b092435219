"""Images as arrays beside the prepared records: a load is one file read."""

import contextlib
import uuid
import zipfile
from pathlib import Path

import numpy as np

from .dataset import Splits

__all__ = ["read", "write"]

# Inside the prepared folder, so that preparing anew removes it too.
FILE = "jaxcomp-arrays.npz"


def read(folder: Path) -> Splits | None:
    """The arrays that were kept, or None where there are none that are whole.

    Args:
      folder: a prepared data set.

    Returns:
      The arrays or None. The zip inside .npz carries a CRC for each array.
    """
    try:
        # Opened here, because `np.load` leaves a damaged file open.
        with (folder / FILE).open("rb") as stream, np.load(stream) as arrays:
            return Splits(**{field: arrays[field] for field in Splits._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        # Absent or damaged: the records hold the same and are decoded again.
        return None


def write(folder: Path, splits: Splits) -> None:
    """Keep arrays for the next load, in one atomic step.

    Args:
      folder: a prepared data set. Where it cannot be written (a shared, read-only
        disk, or a full one) nothing is kept and the next load decodes again.
      splits: the arrays.
    """
    with contextlib.suppress(OSError):
        # Not `tempfile`: its files are private, and the data may be shared.
        partial = folder / f".{uuid.uuid4().hex}.npz"
        try:
            np.savez(partial, **splits._asdict())
            partial.replace(folder / FILE)
        finally:
            partial.unlink(missing_ok=True)

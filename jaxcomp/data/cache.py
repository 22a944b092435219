"""Keep decoded images beside the prepared records, so that loading reads one file."""

import contextlib
import io
import zipfile
from pathlib import Path

import numpy as np

from jaxcomp.files import write_atomically

from .dataset import Splits

__all__ = ["read", "write"]

# Inside the prepared folder, so that preparing anew removes it too.
FILE = "jaxcomp-arrays.npz"


def read(folder: Path) -> Splits | None:
    """The arrays that `write` kept, or None if there are none or they are damaged.

    Args:
      folder: a prepared data set.

    Returns:
      The arrays or None. Damage is found by the CRC of each array in the .npz file.
    """
    try:
        # Opened here, because `np.load` leaves a damaged file open.
        with (folder / FILE).open("rb") as stream, np.load(stream) as arrays:
            return Splits(**{field: arrays[field] for field in Splits._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        # The records hold the same images and will be decoded again.
        return None


def write(folder: Path, splits: Splits) -> None:
    """Keep the arrays for the next load, in one atomic step.

    Args:
      folder: a prepared data set. If it cannot be written to, because the disk is full
        or read-only, nothing is kept and the next load decodes again.
      splits: the arrays.
    """
    whole = io.BytesIO()
    np.savez(whole, **splits._asdict())
    with contextlib.suppress(OSError):
        write_atomically(folder / FILE, whole.getvalue())

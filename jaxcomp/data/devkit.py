"""The classes of ImageNet's validation images, which their names do not tell."""

import io
import re
from pathlib import Path

import numpy as np

from . import archives
from .dataset import DataError

__all__ = ["SYNSET", "synsets_of_validation"]

SYNSET = re.compile(r"n[0-9]{8}")  # each is the name of a folder

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
# A line for each image, such as n01751748.
LIST = "imagenet_2012_validation_synset_labels.txt"
_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"


def synsets_of_validation(folder: Path, count: int) -> list[str]:
    """The synset of each validation image, in their order.

    Args:
      folder: holds the development kit, ILSVRC2012_devkit_t12.tar.gz, or a text with a
        synset in each line, imagenet_2012_validation_synset_labels.txt.
      count: of the images.

    Raises:
      DataError: both are missing, or the one that is there is damaged.
    """
    if (folder / LIST).is_file():
        where = folder / LIST
        found = where.read_text(encoding="utf-8", errors="replace").split()
    elif (folder / DEVKIT).is_file():
        where = folder / DEVKIT
        members = archives.read_members(where, [[_TRUTH, _META]], {})
        names = _synsets(members[_META], f"{where}: {_META}")
        try:
            found = [names[int(line)] for line in members[_TRUTH].split()]
        except (KeyError, ValueError) as error:
            raise DataError(f"{where}: {_TRUTH} names no class: {error}") from error
    else:
        raise DataError(
            f"{folder} holds neither {DEVKIT} nor {LIST}, of which one says the "
            "classes of the validation images"
        )
    wrong = [name for name in found if not SYNSET.fullmatch(name)]
    if wrong:
        raise DataError(f"{where}: {wrong[0]!r} is no synset such as n01440764")
    if len(found) != count:
        message = f"classes of {len(found):,} images, expected {count:,}"
        raise DataError(f"{where}: {message}")
    return found


def _synsets(content: bytes, where: str) -> dict[int, str]:
    """Number of a class -> its synset, of those that have no classes below them."""
    from scipy.io import loadmat

    try:
        rows = np.atleast_1d(loadmat(io.BytesIO(content), squeeze_me=True)["synsets"])
        return {
            int(row["ILSVRC2012_ID"]): str(row["WNID"])
            for row in rows
            if int(row["num_children"]) == 0
        }
    except Exception as error:  # scipy raises whatever its parser meets
        raise DataError(f"{where}: damaged MATLAB file: {error}") from error

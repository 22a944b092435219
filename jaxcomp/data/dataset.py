"""A data set in memory, and the folder of prepared ones."""

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.errors import UserError
from jaxcomp.core.files import expanded


class DataError(UserError):
    """Data that is missing, damaged or different from what was expected."""

    exit_code = 1


class Dataset(NamedTuple):
    """A data set: images, labels and statistics.

    Images are arrays in memory, arrays that stay on disk (`np.memmap`), or `Pictures`,
    which are decoded when they are indexed.
    """

    name: str
    train_images: Any  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: Any  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]
    num_classes: int
    mean: tuple[float, ...]  # per channel, images scaled to 0..1
    std: tuple[float, ...]  # per channel, images scaled to 0..1


class Splits(NamedTuple):
    """The arrays of a data set, without its name and statistics."""

    train_images: np.ndarray  # uint8 [N, H, W, C]
    train_labels: np.ndarray  # int32 [N]
    test_images: np.ndarray  # uint8 [M, H, W, C]
    test_labels: np.ndarray  # int32 [M]


DataDir = str | os.PathLike[str] | None


def data_root(data_dir: DataDir = None) -> Path:
    """The folder of all prepared data.

    Args:
      data_dir: the folder; if it is not given, the environment variable
        JAXCOMP_DATA_DIR, else ~/.cache/jaxcomp.

    Returns:
      The folder, which need not exist.

    Example:
      >>> data_root("data").as_posix()
      'data'
    """
    chosen = data_dir or os.environ.get("JAXCOMP_DATA_DIR") or "~/.cache/jaxcomp"
    return expanded(chosen)


def command(name: str, data_dir: DataDir = None, *, options: str = "") -> str:
    """The shell command that prepares a data set, for error messages.

    Args:
      name: of the data set.
      data_dir: as the user gave it; None needs no option.
      options: further options, quoted for a shell.

    Returns:
      One line for a shell.

    Example:
      >>> command("mnist", "my data", options="--archive FILE")
      "jaxcomp data prepare mnist --archive FILE --data-dir 'my data'"
    """
    words = ["jaxcomp data prepare", name]
    if options:
        words.append(options)
    if data_dir is not None:
        words.append(f"--data-dir {shlex.quote(os.fspath(data_dir))}")
    return " ".join(words)


def not_prepared(
    name: str,
    data_dir: DataDir,
    below: str = "",
    archive: str = "FOLDER",
    more: str = "",
) -> DataError:
    """The error about a data set that has to be prepared first.

    Args:
      name: of the data set.
      data_dir: as the user gave it.
      below: the folder of its version.
      archive: what it is prepared from.
      more: what else one may do.
    """
    looked = data_root(data_dir) / name / below
    how = command(name, data_dir, options=f"--archive {archive}")
    message = f"{name} is not prepared: looked for {looked}. Prepare it with\n  "
    return DataError(f"{message}{how}{more}")

"""Prepare a data set from an archive or a download, completely or not at all."""

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jaxcomp.files import expanded

from . import builders, cache, download, paths, tfds_source
from .builders import Progress
from .checks import check
from .dataset import DataError
from .installing import install, scratch_folder
from .sources import Source

__all__ = ["Prepared", "prepare"]


class Prepared(NamedTuple):
    """The folder of a data set, and how its content was checked."""

    folder: Path
    evidence: str | None  # None if it was prepared before


def prepare(
    source: Source,
    *,
    archive: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress = lambda task, done, total: None,
) -> Prepared:
    """Prepare a data set for `load`. If this fails, the data folder is unchanged.

    Args:
      source: which data set, an entry of `sources.SOURCES`.
      archive: the original archive or an unpacked folder; None: it is downloaded.
      data_dir: as in `paths.data_root`.
      force: prepare it again even if it was prepared before.
      progress: called with (task, done, total).

    Returns:
      The prepared folder and how the content was checked.

    Raises:
      DataError: the archive is damaged or of another data set, or the download failed.
    """
    present = tfds_source.find_prepared(source, data_dir)
    if present is not None and not force:
        return Prepared(present, None)
    root = paths.data_root(data_dir)
    with scratch_folder(root) as scratch:
        if archive is not None:
            path = expanded(archive)
        else:
            path = _download(source, scratch, data_dir, progress)
        splits, evidence = source.read(path, source.md5)
        check(splits, source, path)
        written = builders.write(source, splits, scratch / "tfds", progress)
        cache.write(written, splits)  # `load` need not decode what was just encoded
        folder = root / source.name / source.version
        install(written, folder, scratch / "old")
    return Prepared(folder, evidence)


def _download(
    source: Source,
    scratch: Path,
    data_dir: str | os.PathLike[str] | None,
    progress: Progress,
) -> Path:
    """Download all files of a source; returns the file, or the folder of several."""
    files = [scratch / PurePosixPath(url).name for url in source.urls]
    try:
        for url, file in zip(source.urls, files, strict=True):
            download.fetch(url, file, md5=source.md5[file.name], progress=progress)
    except DataError as error:
        by_hand = "\n".join(f"  {url}" for url in source.urls)
        what = "FILE" if len(files) == 1 else "FOLDER"
        again = paths.command(source.name, data_dir, options=f"--archive {what}")
        raise DataError(
            f"{error}\nWithout this network, fetch by hand\n{by_hand}\n"
            f"and run\n  {again}"
        ) from error
    return files[0] if len(files) == 1 else scratch

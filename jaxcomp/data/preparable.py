"""What `jaxcomp data` can prepare, all by the same three functions."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import downsampled, ilsvrc, paths, sources, texts, tfds_source
from .paths import DataDir
from .prepare import prepare

__all__ = ["Preparable", "preparable"]


class Preparable(NamedTuple):
    """A data set that is prepared once."""

    folder: Callable[[DataDir], Path]  # where it is or would be
    find: Callable[[DataDir], Path | None]  # the folder, if it is prepared
    # (archive, data_dir, force, progress) -> what was done; "" if it was there before
    prepare: Callable[[Any, DataDir, bool, Any], str]


def preparable() -> dict[str, Preparable]:
    """All of them by name.

    Example:
      >>> preparable()["mnist"].folder("data").as_posix()
      'data/mnist/3.0.1'
    """
    rows = {name: _images(it) for name, it in sources.SOURCES.items()}
    rows |= {name: _arrays(it) for name, it in downsampled.DOWNSAMPLED.items()}
    rows[ilsvrc.NAME] = Preparable(
        _below(ilsvrc.NAME), ilsvrc.find_prepared, _prepare_imagenet
    )
    return rows | {name: _text(it) for name, it in texts.SOURCES.items()}


def _below(*names: str) -> Callable[[DataDir], Path]:
    return lambda data_dir: paths.data_root(data_dir).joinpath(*names)


def _images(source: sources.Source) -> Preparable:
    def run(archive: Any, data_dir: DataDir, force: bool, progress: Any) -> str:
        folder, evidence = prepare(
            source, archive=archive, data_dir=data_dir, force=force, progress=progress
        )
        if evidence is None:
            return ""
        train, test = source.counts
        return (
            f"{train} training and {test} test images prepared in {folder}\n"
            f"checked by: {evidence}"
        )

    find = functools.partial(tfds_source.find_prepared, source)
    return Preparable(_below(source.name, source.version), find, run)


def _arrays(source: downsampled.Downsampled) -> Preparable:
    def run(archive: Any, data_dir: DataDir, force: bool, progress: Any) -> str:
        folder = downsampled.prepare(
            source, archive=archive, data_dir=data_dir, force=force, progress=progress
        )
        train, test = source.counts
        done = f"{train} training and {test} test images prepared in {folder}"
        return f"{done}\nchecked by: counts, sizes and labels" if folder else ""

    find = functools.partial(downsampled.find_prepared, source)
    return Preparable(_below(source.name), find, run)


def _prepare_imagenet(
    archive: Any, data_dir: DataDir, force: bool, progress: Any
) -> str:
    folder = ilsvrc.prepare(archive, data_dir, force=force, progress=progress)
    train, test = ilsvrc.COUNTS
    done = f"{train} training and {test} validation images unpacked into {folder}"
    return f"{done}\nchecked by: counts and names" if folder else ""


def _text(source: texts.TextSource) -> Preparable:
    def run(archive: Any, data_dir: DataDir, force: bool, progress: Any) -> str:
        del progress  # it takes a moment
        folder, is_new = texts.prepare(
            source, archive=archive, data_dir=data_dir, force=force
        )
        counts = ", ".join(f"{count:,}" for count in source.tokens)
        done = (
            f"{counts} words for train, valid and test, {source.words:,} different "
            f"ones, prepared in {folder}"
        )
        return done if is_new else ""

    find = functools.partial(texts.find_prepared, source)
    return Preparable(_below(source.name), find, run)

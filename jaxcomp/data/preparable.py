"""What `jaxcomp data prepare` can prepare, and stand-ins for what is not prepared."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.specs import calls
from jaxcomp.data import dataset, ilsvrc, sources
from jaxcomp.data import ilsvrc as downsampled
from jaxcomp.data import prepare as tfds_source
from jaxcomp.data import text as texts
from jaxcomp.data.dataset import DataDir, Dataset
from jaxcomp.data.ilsvrc import DOWNSAMPLED, Downsampled
from jaxcomp.data.prepare import prepare
from jaxcomp.data.sources import SOURCES
from jaxcomp.data.text import PARTS, Text
from jaxcomp.data.text import SOURCES as TEXTS


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
        _below(ilsvrc.NAME), ilsvrc.find_imagenet, _prepare_imagenet
    )
    return rows | {name: _text(it) for name, it in texts.SOURCES.items()}


def _below(*names: str) -> Callable[[DataDir], Path]:
    return lambda data_dir: dataset.data_root(data_dir).joinpath(*names)


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
        folder = downsampled.prepare_downsampled(
            source, archive=archive, data_dir=data_dir, force=force, progress=progress
        )
        train, test = source.counts
        done = f"{train} training and {test} test images prepared in {folder}"
        return f"{done}\nchecked by: counts, sizes and labels" if folder else ""

    find = functools.partial(downsampled.find_downsampled, source)
    return Preparable(_below(source.name), find, run)


def _prepare_imagenet(
    archive: Any, data_dir: DataDir, force: bool, progress: Any
) -> str:
    folder = ilsvrc.prepare_imagenet(archive, data_dir, force=force, progress=progress)
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


def stand_in_for(dataset: str, data_dir: DataDir) -> str:
    """The spec of what stands in for a data set; "" if it is here, or not known.

    Args:
      dataset: spec string.
      data_dir: as in `paths.data_root`.

    Example:
      >>> stand_in_for("mnist", "nowhere")
      "jaxcomp.data.preparable:images(of='mnist')"
    """
    [call], known = calls(dataset), preparable()
    if call.name not in known or "path" in call.kwargs:
        return ""
    kind = "text" if call.name in TEXTS else "images"
    is_here = known[call.name].find(data_dir)
    return "" if is_here else f"{__name__}:{kind}(of={call.name!r})"


def images(of: str) -> Dataset:
    """Black images, equally many of each class."""
    source = SOURCES.get(of) or DOWNSAMPLED.get(of) or Downsampled(of, side=224)
    classes, colours = source.num_classes, (0.5,) * source.shape[-1]
    black = [np.broadcast_to(np.uint8(0), (n, *source.shape)) for n in source.counts]
    labels = [np.arange(n, dtype=np.int32) % classes for n in source.counts]
    train, test = zip(black, labels, strict=True)
    return Dataset(of, *train, *test, classes, colours, colours)


def text(of: str) -> Text:
    """One word again and again, of a vocabulary as large as that of the text."""
    source = TEXTS[of]
    parts = [np.zeros(size, np.int32) for size in source.tokens]
    words = tuple(map(str, range(source.words)))
    return Text(of, dict(zip(PARTS, parts, strict=True)), words)

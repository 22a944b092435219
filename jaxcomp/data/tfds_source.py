"""Load a prepared data set through TensorFlow Datasets, without TensorFlow."""

import functools
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from . import cache, paths
from .dataset import DataError, Dataset, Splits
from .paths import DataDir
from .sources import Source

__all__ = ["find_prepared", "load", "read_records"]

# Records that are read at a time: more need more memory, fewer need more calls.
CHUNK = 1000


class _Records(Protocol):
    """The part of the data sources of TFDS that is used here."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: Sequence[int]) -> Sequence[Mapping[str, Any]]: ...


def find_prepared(source: Source, data_dir: DataDir = None) -> Path | None:
    """The prepared folder, or None. TFDS is not imported for this.

    Args:
      source: which data set.
      data_dir: as in `paths.data_root`.

    Returns:
      `data_dir / name / version`, if the two files that describe it are there.
    """
    folder = paths.data_root(data_dir) / source.name / source.version
    written = (folder / "dataset_info.json", folder / "features.json")
    return folder if all(file.is_file() for file in written) else None


def load(source: Source, data_dir: DataDir = None) -> Dataset:
    """Load a prepared data set into memory, in the order of the original archive.

    `prepare` keeps the arrays beside the records. If they are missing, because TFDS's
    own tools prepared the data, every PNG is decoded (about 5 s for 60,000 images) and
    the arrays are kept for the next load.

    Args:
      source: which data set.
      data_dir: as in `paths.data_root`.

    Returns:
      The data set.

    Raises:
      DataError: it is not prepared, or cannot be read.
    """
    folder = find_prepared(source, data_dir)
    if folder is None:
        more = "\nor leave --archive out to download it"
        raise paths.not_prepared(source.name, data_dir, source.version, "FILE", more)
    splits = cache.read(folder)
    if splits is None:
        splits = _decode(source, folder, data_dir)
        cache.write(folder, splits)
    return Dataset(
        name=source.name,
        **splits._asdict(),
        num_classes=source.num_classes,
        mean=source.mean,
        std=source.std,
    )


def _decode(source: Source, folder: Path, data_dir: DataDir) -> Splits:
    # Imported here, because it takes time and is not needed once the arrays are kept.
    import tensorflow_datasets as tfds

    try:
        open_split = functools.partial(
            tfds.data_source,
            f"{source.name}:{source.version}",
            data_dir=os.fspath(paths.data_root(data_dir)),
            # Pillow is faster when it is called directly, and TFDS warns if OpenCV is
            # not installed.
            decoders={"image": tfds.decode.SkipDecoding()},
        )
        # The declared type of these data sources lacks the method for batched reads.
        train = cast(_Records, open_split(split="train"))
        test = cast(_Records, open_split(split="test"))
        return Splits(*read_records(train, source), *read_records(test, source))
    except (OSError, ValueError, RuntimeError, NotImplementedError, KeyError) as error:
        # TFDS and array_record raise these for damaged records or another format.
        again = paths.command(source.name, data_dir, options="--force --archive FILE")
        raise DataError(
            f"the prepared {source.name} in {folder} cannot be read as array_record: "
            f"{error}. Prepare it anew with\n  {again}"
        ) from error


def read_records(records: _Records, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, H, W, C] and labels int32 [N], sorted by id where there is one.

    TFDS's own builders shuffle the records and `builders` does not. Sorting restores
    the order of the archive, so that runs with a seed give the same results with both.

    Args:
      records: a data source of TFDS whose images are still encoded.
      source: gives the shape of the images.

    Returns:
      Images and labels.
    """
    from PIL import Image

    images = np.empty((len(records), *source.shape), np.uint8)
    labels = np.empty(len(records), np.int32)
    ids: list[bytes] = []
    for start in range(0, len(records), CHUNK):
        chunk = range(start, min(start + CHUNK, len(records)))
        for index, record in zip(chunk, records.__getitems__(list(chunk)), strict=True):
            with Image.open(io.BytesIO(record["image"])) as image:
                images[index] = np.asarray(image).reshape(source.shape)
            labels[index] = record["label"]
            if "id" in record:
                ids.append(record["id"])
    if len(ids) < len(records) or ids == sorted(ids):
        return images, labels
    order = np.argsort(ids)
    return images[order], labels[order]

"""CIFAR-10 and CIFAR-100 archives, binary, pickled or parquet, as arrays.

All formats are converted to binary records first: label bytes, then 3072 bytes of
pixels as a red, a green and a blue plane. So one set of published checksums covers
both, and an archive that somebody re-packed is checked by its content.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import archives, parquet, pickles
from .dataset import DataError, Splits

__all__ = ["CIFAR10", "CIFAR100", "Layout", "read"]

PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """Names of the files in an archive. Binary files have the suffix ".bin"."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    # Keys of labels in a pickle; in a record each is a byte. The last one is used.
    labels: tuple[str, ...]
    columns: tuple[str, ...]  # the same in a parquet file


CIFAR10 = Layout(
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    labels=("labels",),
    columns=("label",),
)
CIFAR100 = Layout(
    train=("train",),
    test=("test",),
    labels=("coarse_labels", "fine_labels"),
    columns=("coarse_label", "fine_label"),
)


def read(path: Path, md5: Mapping[str, str], *, layout: Layout) -> tuple[Splits, str]:
    """Read an archive or an unpacked folder and check it against known MD5s.

    Args:
      path: tar, zip or folder, with the binary or the pickled files, or the parquet
        files of Hugging Face.
      md5: published checksums by file name, of archives and of .bin members.
      layout: names of the files.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: the archive is damaged, incomplete, or has another content.

    References:
      Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
      https://www.cs.toronto.edu/~kriz/cifar.html, 2009.
    """
    stems = layout.train + layout.test
    binary = [f"{stem}.bin" for stem in stems]
    members = archives.read_members(path, [binary, stems, parquet.FILES], md5)
    if parquet.FILES[0] in members:
        records = _from_parquet(members, layout, path)
    else:
        decode = _from_binary if binary[0] in members else _from_pickle
        records = {
            stem: decode(content, layout, f"{path}: {name}")
            for stem, (name, content) in zip(stems, members.items(), strict=True)
        }
    evidence = _verify(path, records, md5)
    train = _arrays([records[stem] for stem in layout.train], layout)
    test = _arrays([records[stem] for stem in layout.test], layout)
    return Splits(*train, *test), evidence


def _from_binary(content: bytes, layout: Layout, where: str) -> np.ndarray:
    width = len(layout.labels) + PIXELS
    if not content or len(content) % width:
        raise DataError(
            f"{where}: {len(content):,} bytes, expected a multiple of {width} "
            f"({len(layout.labels)} label bytes and {PIXELS} pixels per record)"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, width)


def _from_pickle(content: bytes, layout: Layout, where: str) -> np.ndarray:
    batch = pickles.read_batch(content, where)
    missing = [key for key in ("data", *layout.labels) if key not in batch]
    if missing:
        raise DataError(
            f"{where}: no {', '.join(missing)}; found keys {', '.join(sorted(batch))}"
        )
    images = np.asarray(batch["data"])
    found, columns = f"{images.dtype} {images.shape}", []
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != PIXELS:
        raise DataError(f"{where}: data is {found}, expected uint8 (N, {PIXELS})")
    for key in layout.labels:
        labels = np.asarray(batch[key])
        found, expected = f"{labels.dtype} {labels.shape}", images.shape[:1]
        if labels.shape != expected or labels.dtype.kind not in "iu":
            raise DataError(f"{where}: {key} is {found}, expected integers {expected}")
        if labels.size and not 0 <= labels.min() <= labels.max() <= 255:
            values = f"{labels.min()}..{labels.max()}"
            raise DataError(f"{where}: {key} has values {values}, expected bytes")
        columns.append(labels.astype(np.uint8)[:, None])
    return np.concatenate([*columns, images], axis=1)


def _from_parquet(
    members: Mapping[str, bytes], layout: Layout, path: Path
) -> dict[str, np.ndarray]:
    """Records by batch: a parquet file has those of all its batches, one by one."""
    records = {}
    halves = (layout.train, layout.test)
    for stems, (name, content) in zip(halves, members.items(), strict=True):
        where = f"{path}: {name}"
        images, labels = parquet.read(content, layout.columns, where)
        if images.shape[1:] != (32, 32, 3):
            message = f"{where}: images of {images.shape[1:]}, expected (32, 32, 3)"
            raise DataError(message)
        planes = images.transpose(0, 3, 1, 2).reshape(len(images), PIXELS)
        whole = np.concatenate([labels, planes], axis=1)
        if len(whole) % len(stems):
            message = f"{len(whole):,} rows, expected a multiple of {len(stems)}"
            raise DataError(f"{where}: {message}")
        records.update(zip(stems, np.split(whole, len(stems)), strict=True))
    return records


def _verify(
    path: Path, records: Mapping[str, np.ndarray], md5: Mapping[str, str]
) -> str:
    """Compare the MD5 of the content, or of the archive, with the published ones."""
    expected = {stem: md5.get(f"{stem}.bin") for stem in records}
    actual = {stem: archives.md5_of(batch.data) for stem, batch in records.items()}
    if actual == expected:
        return "MD5 of every batch"
    archive_md5 = archives.checksum(path) if path.is_file() else "none, a folder"
    if archive_md5 in md5.values():
        return "MD5 of the archive"
    if not any(expected.values()):
        return "counts, labels and class balance; it is not an archive of known MD5"
    wrong = next(stem for stem in records if actual[stem] != expected[stem])
    tars = [f"{md5[name]} ({name})" for name in md5 if name.endswith(".tar.gz")]
    raise DataError(
        f"{path}: {wrong} has another content: MD5 {actual[wrong]}, expected "
        f"{expected[wrong]} (as .bin records). MD5 of the archive: {archive_md5}, "
        f"expected {' or '.join(tars)}"
    )


def _arrays(batches: list[np.ndarray], layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Records, uint8 [N, labels + 3072], as images [N, 32, 32, 3] and labels [N]."""
    records = np.concatenate(batches)
    planes = records[:, len(layout.labels) :].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return images, records[:, len(layout.labels) - 1].astype(np.int32)

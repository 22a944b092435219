"""Small archives in every format, with the checksums that belong to them."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet as pq
from PIL import Image
from scipy.io import savemat

from jaxcomp.data import sources
from jaxcomp.data.dataset import Splits
from jaxcomp.data.sources import (
    CIFAR10_LAYOUT,
    CIFAR100_LAYOUT,
    IDX_FILES,
    PIXELS,
    RecordLayout,
    Source,
)

PER_BATCH = 20


class Toy(NamedTuple):
    """A source shrunk to a few images, and the files of its archives."""

    source: Source
    files: Mapping[str, Mapping[str, bytes]]  # form -> member name -> content
    splits: Splits


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cifar10() -> Toy:
    return _cifar(sources.CIFAR10, CIFAR10_LAYOUT, "cifar-10-batches-")


def cifar100() -> Toy:
    return _cifar(
        sources.CIFAR100._replace(num_classes=5), CIFAR100_LAYOUT, "cifar-100-"
    )


def _cifar(source: Source, layout: RecordLayout, prefix: str) -> Toy:
    rng = np.random.default_rng(7)
    stems = layout.train + layout.test
    records, pickles = {}, {}
    for stem in stems:
        fine = rng.permutation(np.arange(PER_BATCH) % source.num_classes)
        labels = np.stack([fine // 2, fine][-len(layout.labels) :], 1).astype(np.uint8)
        pixels = rng.integers(0, 256, (PER_BATCH, PIXELS), np.uint8)
        records[stem] = np.concatenate([labels, pixels], axis=1)
        keyed = zip(layout.labels, labels.T.tolist(), strict=True)
        content = {b"data": pixels} | {key.encode(): value for key, value in keyed}
        pickles[f"{prefix}py/{stem}"] = pickle.dumps(content, protocol=2)
    binary = {f"{prefix}bin/{stem}.bin": records[stem].tobytes() for stem in stems}
    known = {}
    if layout is CIFAR10_LAYOUT:
        known = {name.rpartition("/")[2]: md5(data) for name, data in binary.items()}
    train, test = len(layout.train) * PER_BATCH, len(layout.test) * PER_BATCH
    every = np.concatenate([records[stem] for stem in stems])
    planes = every[:, -PIXELS:].reshape(-1, 3, 32, 32)
    images, labels = planes.transpose(0, 2, 3, 1), every[:, len(layout.labels) - 1]
    tables = {}
    for name, rows in zip(
        sources.PARQUET_FILES, (slice(train), slice(train, None)), strict=True
    ):
        names = [name.removesuffix("s") for name in layout.labels]
        keyed = zip(names, every[rows, : len(layout.labels)].T, strict=True)
        tables[name] = parquet(images[rows], dict(keyed))
    return Toy(
        source._replace(counts=(train, test), md5=known),
        {"binary": binary, "python": pickles, "parquet": tables},
        Splits(images[:train], labels[:train], images[train:], labels[train:]),
    )


def svhn() -> Toy:
    rng = np.random.default_rng(9)
    files, splits = {}, []
    for name, count in zip(sources.SVHN_FILES, (30, 12), strict=True):
        images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = np.arange(count) % 10
        stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        stream = io.BytesIO()
        content = {"X": images.transpose(1, 2, 3, 0), "y": stored}
        savemat(stream, content, do_compression=True)
        files[name], splits = stream.getvalue(), [*splits, images, labels]
    known = {name: md5(content) for name, content in files.items()}
    source = sources.SVHN._replace(counts=(30, 12), md5=known)
    return Toy(source, {"mat": files}, Splits(*splits))


def stl10() -> Toy:
    rng = np.random.default_rng(10)
    files, splits = {"stl10_binary/unlabeled_X.bin": b"not read"}, []
    for half, count in (("train", 20), ("test", 10)):
        images = rng.integers(0, 256, (count, 96, 96, 3), np.uint8)
        labels = rng.permutation(np.arange(count) % 10)
        columns = images.transpose(0, 3, 2, 1)  # planes, of which each is by columns
        files[f"stl10_binary/{half}_X.bin"] = columns.tobytes()
        files[f"stl10_binary/{half}_y.bin"] = (labels + 1).astype(np.uint8).tobytes()
        splits += [images, labels]
    known = {name.rpartition("/")[2]: md5(data) for name, data in files.items()}
    source = sources.STL10._replace(counts=(20, 10), md5=known)
    return Toy(source, {"binary": files}, Splits(*splits))


def parquet(images: np.ndarray, labels: Mapping[str, np.ndarray]) -> bytes:
    """A file as Hugging Face writes it: PNGs in a struct, and columns of labels."""
    cells = []
    for number, image in enumerate(images):
        png = io.BytesIO()
        Image.fromarray(image).save(png, "png")
        cells.append({"bytes": png.getvalue(), "path": f"{number}.png"})
    columns = {name: pyarrow.array(column) for name, column in labels.items()}
    stream = io.BytesIO()
    pq.write_table(pyarrow.table({"img": pyarrow.array(cells), **columns}), stream)
    return stream.getvalue()


def mnist() -> Toy:
    rng = np.random.default_rng(8)
    arrays = [
        rng.integers(0, 256, (30, 28, 28), np.uint8),
        rng.integers(0, 10, 30, np.uint8),
        rng.integers(0, 256, (10, 28, 28), np.uint8),
        rng.integers(0, 10, 10, np.uint8),
    ]
    files = {}
    for name, array in zip(IDX_FILES, arrays, strict=True):
        sizes = struct.pack(f">{array.ndim}I", *array.shape)
        header = bytes([0, 0, 8, array.ndim]) + sizes
        files[name] = gzip.compress(header + array.tobytes(), mtime=0)
    known = {name: md5(content) for name, content in files.items()}
    source = sources.MNIST._replace(counts=(30, 10), md5=known)
    train_images, train_labels, test_images, test_labels = arrays
    splits = Splits(
        train_images[..., None], train_labels, test_images[..., None], test_labels
    )
    return Toy(source, {"idx": files}, splits)


def pack(files: Mapping[str, bytes], target: Path) -> Path:
    """Write members as a tar, tar.gz or zip by the name of the target, or a folder."""
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    elif ".tar" in target.name:
        mode = "w:gz" if target.suffix == ".gz" else "w"
        with tarfile.open(target, mode) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    else:
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return target

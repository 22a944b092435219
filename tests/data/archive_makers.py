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

from jaxcomp.data import sources
from jaxcomp.data.cifar import CIFAR10, CIFAR100, PIXELS, Layout
from jaxcomp.data.dataset import Splits
from jaxcomp.data.idx import FILES
from jaxcomp.data.sources import Source

PER_BATCH = 20


class Toy(NamedTuple):
    """A source shrunk to a few images, and the files of its archives."""

    source: Source
    files: Mapping[str, Mapping[str, bytes]]  # form -> member name -> content
    splits: Splits


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cifar10() -> Toy:
    return _cifar(sources.CIFAR10, CIFAR10, "cifar-10-batches-")


def cifar100() -> Toy:
    return _cifar(sources.CIFAR100._replace(num_classes=5), CIFAR100, "cifar-100-")


def _cifar(source: Source, layout: Layout, prefix: str) -> Toy:
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
    if layout is CIFAR10:
        known = {name.rpartition("/")[2]: md5(data) for name, data in binary.items()}
    train, test = len(layout.train) * PER_BATCH, len(layout.test) * PER_BATCH
    every = np.concatenate([records[stem] for stem in stems])
    planes = every[:, -PIXELS:].reshape(-1, 3, 32, 32)
    images, labels = planes.transpose(0, 2, 3, 1), every[:, len(layout.labels) - 1]
    return Toy(
        source._replace(counts=(train, test), md5=known),
        {"binary": binary, "python": pickles},
        Splits(images[:train], labels[:train], images[train:], labels[train:]),
    )


def mnist() -> Toy:
    rng = np.random.default_rng(8)
    arrays = [
        rng.integers(0, 256, (30, 28, 28), np.uint8),
        rng.integers(0, 10, 30, np.uint8),
        rng.integers(0, 256, (10, 28, 28), np.uint8),
        rng.integers(0, 10, 10, np.uint8),
    ]
    files = {}
    for name, array in zip(FILES, arrays, strict=True):
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

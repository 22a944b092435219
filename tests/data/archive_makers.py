"""Small archives in every format, with the checksums that belong to them."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.io import savemat

from jaxcomp.data.dataset import Splits
from jaxcomp.data.sources import SOURCES, Source

PER_BATCH = 20


class Toy(NamedTuple):
    """A source shrunk to a few images, and the files of its archive."""

    source: Source
    files: Mapping[str, bytes]  # member name -> content
    splits: Splits


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _toy(name: str, files: Mapping[str, bytes], splits: Splits, **more: int) -> Toy:
    known = {file.rpartition("/")[2]: md5(content) for file, content in files.items()}
    known = known if {*SOURCES[name].files} <= SOURCES[name].md5.keys() else {}
    counts = len(splits.train_labels), len(splits.test_labels)
    return Toy(SOURCES[name]._replace(counts=counts, md5=known, **more), files, splits)


def cifar10() -> Toy:
    return _cifar("cifar10", 1, 10)


def cifar100() -> Toy:
    return _cifar("cifar100", 2, 5, num_classes=5)


def _cifar(name: str, columns: int, classes: int, **more: int) -> Toy:
    rng = np.random.default_rng(7)
    records, files = [], {}
    for file in SOURCES[name].files:
        fine = rng.permutation(np.arange(PER_BATCH) % classes)
        labels = np.stack([fine // 2, fine][-columns:], 1).astype(np.uint8)
        pixels = rng.integers(0, 256, (PER_BATCH, 3072), np.uint8)
        records.append(np.concatenate([labels, pixels], axis=1))
        files[f"{name}-binary/{file}"] = records[-1].tobytes()
    every, train = np.concatenate(records), PER_BATCH * (len(records) - 1)
    images = every[:, -3072:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = every[:, columns - 1]
    halves = images[:train], labels[:train], images[train:], labels[train:]
    return _toy(name, files, Splits(*halves), **more)


def svhn() -> Toy:
    rng = np.random.default_rng(9)
    files, splits = {}, []
    for name, count in zip(SOURCES["svhn_cropped"].files, (30, 12), strict=True):
        images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = np.arange(count) % 10
        stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        stream = io.BytesIO()
        content = {"X": images.transpose(1, 2, 3, 0), "y": stored}
        savemat(stream, content, do_compression=True)
        files[name], splits = stream.getvalue(), [*splits, images, labels]
    return _toy("svhn_cropped", files, Splits(*splits))


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
    return _toy("stl10", files, Splits(*splits))


def mnist() -> Toy:
    rng = np.random.default_rng(8)
    arrays, files = [], {}
    for name in SOURCES["mnist"].files:
        count = 30 if name.startswith("train") else 10
        shape = (count, 28, 28) if "images" in name else (count,)
        array = rng.integers(0, 256 if "images" in name else 10, shape, np.uint8)
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{len(shape)}I", *shape)
        files[name] = gzip.compress(header + array.tobytes(), mtime=0)
        arrays.append(array[..., None] if "images" in name else array)
    return _toy("mnist", files, Splits(*arrays))


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

"""The small image sets: where they come from, and how their files are read."""

import functools
import gzip
import io
import itertools
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.data import archives
from jaxcomp.data.dataset import DataError, Dataset, Splits, about
from jaxcomp.data.prepare import DataDir, Preparable, Progress, command, prepared

PIXELS = 3 * 32 * 32


class RecordLayout(NamedTuple):
    """Names of the files in an archive. Binary files have the suffix ".bin"."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    # Keys of labels in a pickle; in a record each is a byte. The last one is used.
    labels: tuple[str, ...]


CIFAR10_LAYOUT = RecordLayout(
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    labels=("labels",),
)
CIFAR100_LAYOUT = RecordLayout(
    train=("train",),
    test=("test",),
    labels=("coarse_labels", "fine_labels"),
)


def read_cifar(
    path: Path, md5: Mapping[str, str], *, layout: RecordLayout
) -> tuple[Splits, str]:
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
    members = archives.read_members(path, [binary, stems, PARQUET_FILES], md5)
    if PARQUET_FILES[0] in members:
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


def _from_binary(content: bytes, layout: RecordLayout, where: str) -> np.ndarray:
    width = len(layout.labels) + PIXELS
    if not content or len(content) % width:
        raise DataError(
            f"{where}: {len(content):,} bytes, expected a multiple of {width} "
            f"({len(layout.labels)} label bytes and {PIXELS} pixels per record)"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, width)


def _from_pickle(content: bytes, layout: RecordLayout, where: str) -> np.ndarray:
    pixels, labels = archives.read_images(content, PIXELS, layout.labels, where)
    if labels.min() < 0 or labels.max() > 255:
        values = f"{labels.min()}..{labels.max()}"
        raise DataError(f"{where}: labels have values {values}, expected bytes")
    return np.concatenate([labels.astype(np.uint8), pixels], axis=1)


def _from_parquet(
    members: Mapping[str, bytes], layout: RecordLayout, path: Path
) -> dict[str, np.ndarray]:
    """Records by batch: a parquet file has those of all its batches, one by one."""
    records = {}
    halves = (layout.train, layout.test)
    for stems, (name, content) in zip(halves, members.items(), strict=True):
        where = f"{path}: {name}"
        columns = [name.removesuffix("s") for name in layout.labels]
        images, labels = _read_parquet(content, columns, where)
        if images.shape[1:] != (32, 32, 3):
            message = f"{where}: images of {images.shape[1:]}, expected (32, 32, 3)"
            raise DataError(message)
        planes = images.transpose(0, 3, 1, 2).reshape(len(images), PIXELS)
        whole = np.concatenate([labels.astype(np.uint8), planes], axis=1)
        if len(whole) % len(stems):
            message = f"{len(whole):,} rows, expected a multiple of {len(stems)}"
            raise DataError(f"{where}: {message}")
        records.update(zip(stems, np.split(whole, len(stems)), strict=True))
    return records


def _read_parquet(
    content: bytes, labels: Sequence[str], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, H, W, C] of one size, and labels [N, columns]."""
    try:
        import pyarrow.parquet
        from PIL import Image
    except ModuleNotFoundError as error:
        message = f"{where}: reading it needs {error.name}"
        raise DataError(f"{message}: pip install pyarrow pillow") from None
    try:
        table = pyarrow.parquet.ParquetFile(io.BytesIO(content)).read()
    except Exception as error:  # pyarrow raises its own, and those of files
        raise DataError(f"{where}: damaged parquet file: {error}") from error
    have = table.column_names
    column = next((name for name in ("img", "image") if name in have), "img")
    if missing := [name for name in (column, *labels) if name not in have]:
        message = f"no column {', '.join(missing)}; it has {', '.join(have)}"
        raise DataError(f"{where}: {message}")
    try:
        cells = [io.BytesIO(cell["bytes"]) for cell in table.column(column).to_pylist()]
        images = np.stack([np.asarray(Image.open(c).convert("RGB")) for c in cells])
        found = np.stack([table.column(n).to_numpy() for n in labels], axis=1)
    except (OSError, SyntaxError, TypeError, KeyError, ValueError) as error:
        message = "its images are damaged or of several sizes, or there are none"
        raise DataError(f"{where}: {message}: {error}") from error
    if found.dtype.kind not in "iu" or found.min() < 0 or found.max() > 255:
        raise DataError(f"{where}: a label is not a number from 0 to 255")
    return images, found


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


def _arrays(
    batches: list[np.ndarray], layout: RecordLayout
) -> tuple[np.ndarray, np.ndarray]:
    """Records, uint8 [N, labels + 3072], as images [N, 32, 32, 3] and labels [N]."""
    records = np.concatenate(batches)
    planes = records[:, len(layout.labels) :].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return images, records[:, len(layout.labels) - 1].astype(np.int32)


PARQUET_FILES = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
_SIDE = 96


def read_stl10(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the labelled images from the tar or a folder, and check their MD5s.

    Args:
      path: tar, zip or folder. Its 100,000 unlabelled images are not read.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      Coates, Lee and Ng, "An Analysis of Single Layer Networks in Unsupervised Feature
      Learning", https://cs.stanford.edu/~acoates/stl10/, 2011.
    """
    members = archives.read_known(path, STL10_FILES, md5)
    train, train_labels, test, test_labels = members.values()
    splits = Splits(
        _images(train), _labels(train_labels), _images(test), _labels(test_labels)
    )
    return splits, "MD5 of every file"


def _images(content: bytes) -> np.ndarray:
    """Images [N, 96, 96, 3] of records, a red, a green and a blue plane by columns."""
    planes = np.frombuffer(content, np.uint8).reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1))


def _labels(content: bytes) -> np.ndarray:
    """Labels from 0, which count from 1 in the file."""
    return np.frombuffer(content, np.uint8).astype(np.int32) - 1


SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
_TEN = 10  # the label of the digit 0


def read_svhn(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the two .mat files from a folder, a tar or a zip, and check their MD5s.

    Args:
      path: folder, tar or zip.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature
      Learning", http://ufldl.stanford.edu/housenumbers/, 2011.
    """
    members = archives.read_known(path, SVHN_FILES, md5)
    halves = map(_decode_mat, members.values())
    return Splits(*itertools.chain(*halves)), "MD5 of every file"


def _decode_mat(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a file of MATLAB 5, which holds X [32, 32, 3, N] and y."""
    from scipy.io import loadmat

    found = loadmat(io.BytesIO(content), variable_names=("X", "y"))
    labels = found["y"][:, 0].astype(np.int32)
    labels[labels == _TEN] = 0
    return np.ascontiguousarray(found["X"].transpose(3, 0, 1, 2)), labels


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def read_idx(path: Path, md5: Mapping[str, str]) -> tuple[Splits, str]:
    """Read the four .gz files from a folder, a tar or a zip, and check their MD5s.

    Args:
      path: folder, tar or zip.
      md5: published checksums by file name.

    Returns:
      The arrays in the order of the files, and how they were checked.

    Raises:
      DataError: a file is missing, damaged, or has another content.

    References:
      LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998;
      the format is described at https://yann.lecun.com/exdb/mnist/.
    """
    members = archives.read_known(path, IDX_FILES, md5)
    images, labels, test_images, test_labels = map(_decode_idx, members.values())
    train = images[..., None], labels.astype(np.int32)
    test = test_images[..., None], test_labels.astype(np.int32)
    return Splits(*train, *test), "MD5 of every file"


def _decode_idx(content: bytes) -> np.ndarray:
    """Decode an idx file.

    It holds the bytes 0, 0, type, ndim, then ndim sizes as big-endian uint32, then the
    values.
    """
    raw = gzip.decompress(content)
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return np.frombuffer(raw, np.uint8)[4 + 4 * raw[3] :].reshape(shape)


Reader = Callable[[Path, Mapping[str, str]], tuple[Splits, str]]


class Source(NamedTuple):
    """Where a data set comes from, and what is known of its content."""

    name: str  # as in TFDS
    shape: tuple[int, int, int]  # H, W, C
    num_classes: int
    counts: tuple[int, int]  # training and test examples
    balanced: bool  # all classes have the same number of examples in each split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Reader  # (archive, md5) -> arrays, and how they were checked
    urls: tuple[str, ...]  # what `prepare` downloads
    md5: Mapping[str, str]  # name -> published MD5, of archives and their members

    about = property(about)  # what it holds, in one line


_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

CIFAR10 = Source(
    name="cifar10",
    shape=(32, 32, 3),
    num_classes=10,
    counts=(50_000, 10_000),
    balanced=True,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
    read=functools.partial(read_cifar, layout=CIFAR10_LAYOUT),
    urls=(_CIFAR_URL + "cifar-10-binary.tar.gz",),
    md5={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)

CIFAR100 = CIFAR10._replace(
    name="cifar100",
    num_classes=100,
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    read=functools.partial(read_cifar, layout=CIFAR100_LAYOUT),
    urls=(_CIFAR_URL + "cifar-100-binary.tar.gz",),
    # There are no published MD5s of the members, so a re-packed archive is checked by
    # counts, label ranges and class balance.
    md5={
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    },
)

MNIST = Source(
    name="mnist",
    shape=(28, 28, 1),
    num_classes=10,
    counts=(60_000, 10_000),
    balanced=False,
    mean=(0.1307,),
    std=(0.3081,),
    read=read_idx,
    urls=tuple(_MNIST_URL + name for name in IDX_FILES),
    md5={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)

FASHION_MNIST = MNIST._replace(
    name="fashion_mnist",
    balanced=True,
    mean=(0.2860,),
    std=(0.3530,),
    urls=tuple(_FASHION_URL + name for name in IDX_FILES),
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)

SVHN = Source(
    name="svhn_cropped",
    shape=(32, 32, 3),
    num_classes=10,
    counts=(73_257, 26_032),
    balanced=False,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    read=read_svhn,
    urls=tuple(_SVHN_URL + name for name in SVHN_FILES),
    md5={
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
)

STL10 = Source(
    name="stl10",
    shape=(96, 96, 3),
    num_classes=10,
    counts=(5_000, 8_000),
    balanced=True,
    mean=(0.4467, 0.4398, 0.4066),
    std=(0.2603, 0.2566, 0.2713),
    read=read_stl10,
    urls=("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
    md5={
        "stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb",
        "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "5a34089d4802c674881badbb80307741",
        "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    },
)

_ALL = (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, SVHN, STL10)
SOURCES = {it.name: it for it in _ALL}


def arrays(source: Source) -> Preparable:
    """One file of arrays, from the archive of the publisher."""

    def write(path: Path, new: Path, progress: Progress) -> str:
        del progress  # it takes seconds
        splits, evidence = source.read(path, source.md5)
        check(splits, source, path)
        with new.open("wb") as stream:
            np.savez(stream, **splits._asdict())
        return evidence

    what = "{} training and {} test images".format(*source.counts)
    file = f"{source.name}.npz"
    urls, md5 = source.urls, source.md5
    return Preparable(source.name, what, file, write, urls=urls, md5=md5)


def check(splits: Splits, source: Source, archive: Path) -> None:
    """Refuse arrays with wrong counts, image shape, labels or class balance.

    Args:
      splits: arrays as read.
      source: of which data set.
      archive: from which they were read, for the message.

    Raises:
      DataError: names the archive, what was found and what was expected.
    """
    halves = zip(
        ("training", "test"), (splits[:2], splits[2:]), source.counts, strict=True
    )
    for half, (images, labels), count in halves:
        where = f"{archive}: {source.name}, {half} part: found"
        expected = (count, *source.shape)
        if images.shape != expected or labels.shape != (count,):
            shapes = f"images {images.shape} and labels {labels.shape}"
            raise DataError(f"{where} {shapes}, expected {expected} and {(count,)}")
        if labels.min() < 0 or labels.max() >= source.num_classes:
            values = f"labels {labels.min()}..{labels.max()}"
            raise DataError(f"{where} {values}, expected 0..{source.num_classes - 1}")
        sizes = np.bincount(labels, minlength=source.num_classes)
        if source.balanced and sizes.min() != sizes.max():
            found = f"classes of {sizes.min()} to {sizes.max()} examples"
            each = count // source.num_classes
            raise DataError(f"{where} {found}, expected {each} in each")


def load(source: Source, data_dir: DataDir = None) -> Dataset:
    """Load a prepared data set into memory, in the order of the original archive.

    Args:
      source: which data set.
      data_dir: as in `prepare.data_root`.

    Raises:
      DataError: it is not prepared, or damaged, which the CRC of each array tells.
    """
    file = prepared(arrays(source), data_dir)
    try:
        # Opened here, because `np.load` leaves a damaged file open.
        with file.open("rb") as stream, np.load(stream) as kept:
            splits = Splits(*(kept[field] for field in Splits._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        again = command(arrays(source), data_dir, "--force")
        message = f"{file} is damaged: {error}. Prepare it anew with"
        raise DataError(f"{message}\n  {again}") from error
    colours = source.mean, source.std
    return Dataset(source.name, *splits, source.num_classes, *colours)

"""Archives as their authors publish them: tar, zip, pickles, Parquet, IDX."""

import functools
import gzip
import hashlib
import io
import pickle
import pickletools
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from jaxcomp.data.dataset import DataError, Splits

_md5 = functools.partial(hashlib.md5, usedforsecurity=False)

# The largest true member is the test set of STL-10, 221 MB; a reader of larger ones
# gives a limit of its own. It keeps a crafted archive from filling the memory.
MEMBER_LIMIT = 256 * 2**20

# What a truncated file, or one of another format, raises. zipfile raises RuntimeError
# for a password or an unknown compression.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
)


def checksum(path: Path) -> str:
    """MD5 of a file in hexadecimal, which is the checksum that publishers give.

    Args:
      path: an existing file.

    Returns:
      32 hexadecimal digits.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, _md5).hexdigest()


def md5_of(content: bytes | memoryview) -> str:
    """MD5 of bytes in memory, in hexadecimal."""
    return _md5(content).hexdigest()


def check_md5(path: Path, members: Mapping[str, bytes], md5: Mapping[str, str]) -> None:
    """Refuse members with another content than the published one.

    Args:
      path: of the archive, for the message.
      members: name -> content.
      md5: published checksums by name, one for each member.
    """
    for name, content in members.items():
        actual = md5_of(content)
        if actual != md5[name]:
            raise DataError(
                f"{path}: {name} has {len(content):,} bytes and MD5 {actual}, "
                f"expected MD5 {md5[name]}"
            )


def read_members(
    path: Path,
    choices: Sequence[Sequence[str]],
    md5: Mapping[str, str],
    limit: int = MEMBER_LIMIT,
) -> dict[str, bytes]:
    """Read one complete set of members, found by base name.

    Args:
      path: of a tar (plain or compressed), a zip, or a folder with the members in it or
        in one of its subfolders.
      choices: sets of member names. The first set of which all members are found is
        returned.
      md5: published checksums, for the message.
      limit: bytes of the largest member.

    Returns:
      Member name -> content.

    Raises:
      DataError: there is no such file, it is damaged, or no set is complete.
    """
    wanted = {name for names in choices for name in names}
    found: dict[str, bytes] = {}
    seen: list[str] = []
    try:
        for name, size, stream in _walk(path):
            seen.append(name)
            if name in wanted and name not in found:
                found[name] = _read(path, name, size, stream, limit)
    except (FileNotFoundError, PermissionError) as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except _DAMAGE as error:
        raise DataError(
            f"{path} is cut off, damaged or not a tar or zip archive ({error}). "
            f"{_fingerprint(path)}. {_published(md5)}"
        ) from error
    for names in choices:
        if all(name in found for name in names):
            return {name: found[name] for name in names}
    raise DataError(
        f"{path} does not hold a complete data set. Found: {_listed(seen)}. Needed: "
        f"{' or: '.join(', '.join(names) for names in choices)}. "
        f"{_fingerprint(path)}. {_published(md5)}"
    )


def _walk(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Base name, size and open stream of every regular file, in stored order."""
    if path.is_dir():
        for file in sorted([*path.glob("*"), *path.glob("*/*")]):
            if file.is_file():
                with file.open("rb") as stream:
                    yield file.name, file.stat().st_size, stream
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    name = PurePosixPath(entry.filename).name
                    with archive.open(entry) as stream:
                        yield name, entry.file_size, stream
    else:
        # "r|*" reads forward only: one pass, any compression, no seeking.
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield PurePosixPath(member.name).name, member.size, stream


def _read(path: Path, name: str, size: int, stream: IO[bytes], limit: int) -> bytes:
    if size > limit:
        raise DataError(
            f"{path}: member {name} claims {size:,} bytes, more than any member of "
            f"these data sets (limit {limit:,})"
        )
    content = stream.read(size)
    if len(content) != size:
        raise EOFError(f"member {name} ends after {len(content):,} of {size:,} bytes")
    return content


def _fingerprint(path: Path) -> str:
    if not path.is_file():
        return "It is a folder, so it has no checksum of its own"
    return f"Found: {path.stat().st_size:,} bytes, MD5 {checksum(path)}"


def _published(md5: Mapping[str, str]) -> str:
    """The known checksums of archives, or of members if archives have none."""
    if not md5:
        return "No checksum of it is published"
    archives = [name for name in md5 if name.endswith(".tar.gz")]
    known = ", ".join(f"{md5[name]} ({name})" for name in archives or md5)
    return f"Expected MD5: {known}"


def _listed(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit]) or "no files"
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown


# What unpickling damaged data raises.
_PICKLE_DAMAGE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


def read_batch(data: bytes, where: str) -> dict[str, Any]:
    """Unpickle a dictionary of NumPy arrays and plain values.

    A pickle can run code by naming a class or function to call. Only the names that
    NumPy arrays need are allowed here, most of them replaced by functions of this file.
    Everything else is refused before it is imported.

    Args:
      data: the pickled dictionary, from Python 2 or 3.
      where: file name for messages.

    Returns:
      The dictionary, with text keys.

    Raises:
      DataError: the pickle names something else, is damaged, or is no dictionary.

    Example:
      >>> read_batch(pickle.dumps({b"labels": [3]}), "data_batch_1")
      {'labels': [3]}
    """
    try:
        _check_places(data)
        # Python 2 stored pixels as byte strings.
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _PICKLE_DAMAGE as error:
        raise DataError(f"{where}: damaged or refused pickle: {error}") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: holds a {type(batch).__name__}, expected a dict")
    return {_text(key): value for key, value in batch.items()}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that allows NumPy arrays and plain values only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The replacement of an allowed name; nothing is imported."""
        full_name = f"{module_name}.{global_name}"
        if full_name not in _ADMITTED:
            raise pickle.UnpicklingError(
                f"it names {full_name}, and only arrays are admitted "
                f"({', '.join(sorted(_ADMITTED))})"
            )
        return _ADMITTED[full_name]


def _check_places(data: bytes) -> None:
    """Refuse a pickle that takes more memory than it has bytes.

    Python makes room for a whole string, and for all places below one that is used.
    """
    for code, value, _ in pickletools.genops(data):
        if "PUT" in code.name and value not in range(len(data)):
            raise pickle.UnpicklingError(f"it uses place {value} of {len(data)}")


def _empty_array(*_ignored: Any) -> np.ndarray:
    """Replaces NumPy's `_reconstruct`; shape and content are set by the state after it.

    It ignores the shape in the pickle, which could ask for a huge allocation.
    """
    return np.empty(0, np.uint8)


def _from_buffer(buffer: bytes, dtype: np.dtype, shape: Any, order: Any) -> np.ndarray:
    """Replaces NumPy's `_frombuffer`, with which protocol 5 stores arrays."""
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


def _latin1(text: str, encoding: str) -> bytes:
    """Replaces `_codecs.encode`, with which Python 3 stores bytes in protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


_ADMITTED: Mapping[str, Any] = {
    "numpy.core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray._reconstruct": _empty_array,  # NumPy 2 renamed it
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
    # Arrays pass it to `_reconstruct`. Here it is not callable, so that a pickle cannot
    # create a huge array with it.
    "numpy.ndarray": "ndarray",
    "numpy.dtype": np.dtype,
    "_codecs.encode": _latin1,
}


PARQUET_FILES = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
_IMAGES = ("img", "image")  # columns that hold a struct of bytes and path


def read_parquet(
    content: bytes, labels: Sequence[str], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Decode all images of a file, which have one size.

    Args:
      content: of the file.
      labels: names of the columns of labels.
      where: file name for messages.

    Returns:
      Images uint8 [N, H, W, C], and labels uint8 [N, columns].

    Raises:
      DataError: pyarrow or Pillow is missing, a column is, or an image is damaged.
    """
    try:
        import pyarrow
        from PIL import Image
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        message = f"{where}: reading it needs {error.name}"
        raise DataError(f"{message}: pip install pyarrow pillow") from None
    try:
        table = ParquetFile(io.BytesIO(content)).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{where}: damaged parquet file: {error}") from error
    column = next((name for name in _IMAGES if name in table.column_names), _IMAGES[0])
    wanted = [column, *labels]
    if missing := [name for name in wanted if name not in table.column_names]:
        have = ", ".join(table.column_names)
        raise DataError(f"{where}: no column {', '.join(missing)}; it has {have}")
    images = []
    for row, cell in enumerate(table.column(column).to_pylist()):
        try:
            with Image.open(io.BytesIO(cell["bytes"])) as image:
                images.append(np.asarray(image.convert("RGB")))
        except (OSError, SyntaxError, TypeError, KeyError) as error:
            raise DataError(f"{where}: row {row} holds no image: {error}") from error
    if len({image.shape for image in images}) != 1:
        raise DataError(f"{where}: its images have several sizes, or there are none")
    columns = [np.asarray(table.column(name).to_pylist()) for name in labels]
    if any(c.dtype.kind not in "iu" or c.min() < 0 or c.max() > 255 for c in columns):
        raise DataError(f"{where}: a label is not a number from 0 to 255")
    return np.stack(images), np.stack(columns, axis=1).astype(np.uint8)


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
UINT8 = 0x08  # the type code of idx for unsigned bytes


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
    members = read_members(path, [IDX_FILES], md5)
    check_md5(path, members, md5)
    arrays = [_decode(content, f"{path}: {name}") for name, content in members.items()]
    train_images, train_labels, test_images, test_labels = arrays
    splits = Splits(
        train_images[..., None],
        train_labels.astype(np.int32),
        test_images[..., None],
        test_labels.astype(np.int32),
    )
    return splits, "MD5 of every file"


def _decode(content: bytes, where: str) -> np.ndarray:
    """Decode an idx file.

    It holds the bytes 0, 0, type, ndim, then ndim sizes as big-endian uint32, then the
    values.
    """
    try:
        raw = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{where}: damaged gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != bytes([0, 0, UINT8]):
        raise DataError(f"{where}: starts with {raw[:4].hex()}, expected 000008..")
    start = 4 + 4 * raw[3]
    shape = struct.unpack(f">{raw[3]}I", raw[4:start].ljust(4 * raw[3], b"\0"))
    values = np.frombuffer(raw, np.uint8)[start:]
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{where}: {values.size:,} values, expected shape {shape}")
    return values.reshape(shape)

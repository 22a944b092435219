"""Archives as their authors publish them: tar, zip or folder, and pickles of arrays."""

import functools
import hashlib
import io
import pickle
import pickletools
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from jaxcomp.data.dataset import DataError

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


def read_known(
    path: Path, names: Sequence[str], md5: Mapping[str, str]
) -> dict[str, bytes]:
    """Read members whose content has to be the published one.

    Args:
      path: as in `read_members`.
      names: of the members.
      md5: published checksums by name, one for each member.
    """
    members = read_members(path, [names], md5)
    for name, content in members.items():
        if (actual := md5_of(content)) != md5[name]:
            raise DataError(
                f"{path}: {name} has {len(content):,} bytes and MD5 {actual}, "
                f"expected MD5 {md5[name]}"
            )
    return members


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
    except Exception as error:  # unpickling damaged data raises many kinds
        raise DataError(f"{where}: damaged or refused pickle: {error}") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: holds a {type(batch).__name__}, expected a dict")
    return {_text(key): value for key, value in batch.items()}


def read_images(
    content: bytes, pixels: int, labels: Sequence[str], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a pickled batch.

    Args:
      content: the pickle.
      pixels: of an image, of all its channels.
      labels: keys of the labels.
      where: file name for messages.

    Returns:
      uint8 [N, pixels], and integers [N, keys].
    """
    batch = read_batch(content, where)
    if missing := [key for key in ("data", *labels) if key not in batch]:
        found = ", ".join(sorted(batch))
        raise DataError(f"{where}: no {' and no '.join(missing)}; it has {found}")
    images, columns = np.asarray(batch["data"]), [np.asarray(batch[k]) for k in labels]
    shape = (len(columns[0]), pixels)
    if images.dtype != np.uint8 or images.shape != shape:
        is_now = f"{images.dtype} {images.shape}"
        raise DataError(f"{where}: data is {is_now}, expected uint8 {shape}")
    for key, column in zip(labels, columns, strict=True):
        if column.dtype.kind not in "iu" or column.shape != shape[:1] or not shape[0]:
            is_now = f"{column.dtype} {column.shape}"
            raise DataError(f"{where}: {key} are {is_now}, expected integers")
    return images, np.stack(columns, axis=1)


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

"""Read members of a tar, a zip or a folder into memory, without unpacking to disk."""

import functools
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from .dataset import DataError

__all__ = ["check_md5", "checksum", "md5_of", "read_members"]

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

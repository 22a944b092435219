"""Archives as their authors publish them: tar, zip or folder."""

import functools
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from jaxcomp.data.dataset import DataError

_md5 = functools.partial(hashlib.md5, usedforsecurity=False)

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


def read_members(
    path: Path, names: Sequence[str], md5: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """Read members, found by base name.

    Args:
      path: of a tar (plain or compressed), a zip, or a folder with the members in it or
        in one of its subfolders.
      names: of the members.
      md5: published checksums, for the message.

    Returns:
      Member name -> content, in the order of the names.

    Raises:
      DataError: there is no such file, it is damaged, or a member is missing.
    """
    found: dict[str, bytes] = {}
    seen: list[str] = []
    try:
        for name, size, stream in _walk(path):
            seen.append(name)
            if name in names and name not in found:
                found[name] = stream.read(size)
                if len(found[name]) != size:
                    raise EOFError(f"member {name} ends before its {size:,} bytes")
    except (FileNotFoundError, PermissionError) as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except _DAMAGE as error:
        message = f"is cut off, damaged or not a tar or zip archive ({error})"
        raise DataError(f"{path} {message}. {_checksums(path, md5)}") from error
    if not {*names} <= found.keys():
        few = ", ".join(seen[:8]) + f" and {len(seen) - 8} more" * (len(seen) > 8)
        needed = f"Found: {few or 'no files'}. Needed: {', '.join(names)}"
        message = f"{path} does not hold a complete data set. {needed}"
        raise DataError(f"{message}. {_checksums(path, md5)}")
    return {name: found[name] for name in names}


def read_known(
    path: Path, names: Sequence[str], md5: Mapping[str, str]
) -> tuple[dict[str, bytes], str]:
    """Read members whose content has to be the published one.

    Args:
      path: as in `read_members`.
      names: of the members.
      md5: published checksums by name, of members or else of archives.

    Returns:
      The members, and how they were checked.
    """
    members = read_members(path, names, md5)
    if not members.keys() <= md5.keys():
        is_known = path.is_file() and checksum(path) in md5.values()
        unknown = "counts, labels and class balance; it is not an archive of known MD5"
        return members, "MD5 of the archive" if is_known else unknown
    for name, content in members.items():
        if (actual := _md5(content).hexdigest()) != md5[name]:
            raise DataError(
                f"{path}: {name} has {len(content):,} bytes and MD5 {actual}, "
                f"expected MD5 {md5[name]}"
            )
    return members, "MD5 of every file"


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


def _checksums(path: Path, md5: Mapping[str, str] | None) -> str:
    """What the archive's is, and what is published: of archives, or of members."""
    own = "It is a folder, so it has no checksum of its own"
    if path.is_file():
        own = f"It has {path.stat().st_size:,} bytes and MD5 {checksum(path)}"
    known = ", ".join(f"{value} ({name})" for name, value in (md5 or {}).items())
    return f"{own}. " + (f"Expected MD5: {known}" if known else "None is published")

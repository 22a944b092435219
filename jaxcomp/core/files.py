"""Small files that are written whole or not at all, and folders with a manifest.

A manifest holds the format of a folder and the SHA-256 of its files. It is written
last: a folder without one is not finished.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jaxcomp.core.errors import RunFailed, UserError

MANIFEST = "manifest.json"


class CheckpointError(RunFailed, RuntimeError):
    """A checkpoint that cannot be written or used."""


class _Manifest(NamedTuple):
    format: int
    digests: dict[str, str]


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder in place of its ~; one error where there is none.

    Example:
      >>> expanded("runs/first").as_posix()
      'runs/first'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        message = "no home folder is known: set HOME, or name another folder"
        raise UserError(f"{path}: {message}") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a kill or a full disk leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    whole = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, "wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, names: Iterable[str], version: int) -> None:
    """Write the manifest of a folder, in place of the one before.

    Args:
      folder: holds all of the files.
      names: of files in it, and of folders in it with all of their files.
      version: number of the format in which they are written.
    """
    found = [p for name in names for p in [folder / name, *(folder / name).rglob("*")]]
    files = sorted(str(p.relative_to(folder)) for p in found if p.is_file())
    digests = {name: _digest(folder / name) for name in files}
    sync(folder)
    content = {"format": version, "files": digests}
    write_atomically(folder / MANIFEST, json.dumps(content, indent=1))
    sync(folder)


def listed(folder: Path) -> set[str]:
    """The files and folders that a folder's manifest names; none without a manifest."""
    manifest = _read(folder)
    names = manifest.digests if manifest else ()
    return {Path(name).parts[0] for name in names if name}


def format_of(folder: Path) -> int | None:
    """The number of a folder's format; None without a manifest."""
    manifest = _read(folder)
    return manifest and manifest.format


def damage(folder: Path) -> str | None:
    """How a folder differs from its manifest, or None if it does not."""
    if not (folder / MANIFEST).is_file():
        return f"it was not finished (no {MANIFEST})"
    manifest = _read(folder)
    if manifest is None:
        return f"{MANIFEST} is cut off, or not one of jaxcomp's"
    for name, digest in manifest.digests.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} has changed since it was written"
    return None


def _read(folder: Path) -> _Manifest | None:
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(content, dict):
        return None
    version, digests = content.get("format"), content.get("files")
    if type(version) is not int or not isinstance(digests, dict):
        return None
    is_ours = all(isinstance(d, str) and len(d) == 64 for d in digests.values())
    return _Manifest(version, digests) if is_ours else None


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

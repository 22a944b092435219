"""Small files that are written whole or not at all, and folders with a manifest.

A manifest holds the SHA-256 of the files of a folder. It is written last, so that a
folder without one is not finished.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "MANIFEST",
    "CheckpointError",
    "damage",
    "listed",
    "sync_folder",
    "write_atomically",
    "write_manifest",
]

MANIFEST = "manifest.json"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used."""


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


def sync_folder(folder: Path) -> None:
    """Make renames durable: a power cut must not leave a manifest without files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Say of what a folder consists, in place of what its manifest said before.

    Args:
      folder: that holds all of the files.
      names: of the files, below it, and of folders with all of their files.
    """
    found = [p for name in names for p in [folder / name, *(folder / name).rglob("*")]]
    files = sorted(str(p.relative_to(folder)) for p in found if p.is_file())
    digests = {name: _digest(folder / name) for name in files}
    sync_folder(folder)
    write_atomically(folder / MANIFEST, json.dumps(digests, indent=1))
    sync_folder(folder)


def listed(folder: Path) -> set[str]:
    """The files and folders of which a folder consists; none without a manifest."""
    digests = _read(folder)
    return {Path(name).parts[0] for name in digests if name} if digests else set()


def damage(folder: Path) -> str | None:
    """Why a folder is not what its manifest says, or None."""
    if not (folder / MANIFEST).is_file():
        return f"it was not finished (no {MANIFEST})"
    digests = _read(folder)
    if digests is None:
        return f"{MANIFEST} is cut off, or not one of jaxcomp's"
    for name, digest in digests.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} has changed since it was written"
    return None


def _read(folder: Path) -> dict[str, str] | None:
    try:
        digests = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    is_ours = isinstance(digests, dict) and all(
        isinstance(digest, str) and len(digest) == 64 for digest in digests.values()
    )
    return digests if is_ours else None


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Checkpoints that a kill cannot half-write and a bad disk cannot pass off as whole.

A checkpoint is a folder `step_NNNNNNNN`: the arrays, written by orbax, `position.json`
with what the host knows, and last of all `manifest.json` with the SHA-256 of every
other file. Without a manifest that fits it does not count, and the one before it is
used. Arrays are stored under their path in the state, so a state that does not fit the
config is named leaf by leaf.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from jaxcomp.base import Tree
from jaxcomp.training.files import write_atomically

__all__ = ["CheckpointError", "Checkpoints", "Restored", "open_checkpoints"]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used."""


class Restored(NamedTuple):
    """What `restore` returns."""

    state: Tree
    position: dict[str, Any]
    step: int


class Checkpoints(NamedTuple):
    """Save and restore states in one folder."""

    # (state, position, step, keep_for_ever, is_best) -> None
    save: Callable[[Tree, dict[str, Any], int, bool, bool], None]
    # (like, "latest" | "best") -> newest whole checkpoint, or None if there is none.
    # `like` is a tree of ShapeDtypeStructs with shardings.
    restore: Callable[[Tree, str], Restored | None]


def open_checkpoints(folder: Path, newest: int = 2) -> Checkpoints:
    """Checkpoints in `folder`: the newest ones, the best, and those kept for ever.

    Args:
      folder: created when the first is saved.
      newest: how many recent ones are kept; with two, one may be damaged.
    """
    folder = folder.absolute()

    def save(
        state: Tree, position: dict[str, Any], step: int, for_ever: bool, best: bool
    ) -> None:
        target = folder / f"step_{step:08d}"
        first = jax.process_index() == 0
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)  # a damaged one, replayed
        with ocp.StandardCheckpointer() as writer:
            writer.save(target / "arrays", _flatten(state), force=True)
            writer.wait_until_finished()
        if not first:
            return
        write_atomically(target / "position.json", json.dumps(position, indent=1))
        if for_ever:
            write_atomically(target / "keep", "")
        manifest = {name: _digest(target / name) for name in _files(target)}
        write_atomically(target / "manifest.json", json.dumps(manifest, indent=1))
        _sync(folder)
        if best:
            write_atomically(folder / "best", target.name)
        _prune(folder, newest)

    def restore(like: Tree, which: str = "latest") -> Restored | None:
        for candidate in _candidates(folder, which):
            problem = _problem(candidate)
            if problem:
                message = f"skipping damaged checkpoint {candidate}: {problem}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                continue
            position = json.loads((candidate / "position.json").read_text())
            state = _read(candidate, like)
            return Restored(state, position, int(candidate.name.removeprefix("step_")))
        return None

    return Checkpoints(save, restore)


def _read(folder: Path, like: Tree) -> Tree:
    """The arrays of a checkpoint in the structure of `like`."""
    wanted = _flatten(like)
    with ocp.StandardCheckpointer() as reader:
        stored = _stored_shapes(reader, folder / "arrays")
        _check_fit(wanted, stored, folder)
        arrays = reader.restore(folder / "arrays", wanted)
    leaves = [arrays[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _stored_shapes(reader: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    metadata = reader.metadata(folder)
    tree = getattr(metadata, "item_metadata", metadata)
    tree = getattr(tree, "tree", tree)
    return {name: tuple(leaf.shape) for name, leaf in dict(tree).items()}


def _check_fit(
    wanted: dict[str, Any], stored: dict[str, tuple[int, ...]], folder: Path
) -> None:
    """Compare names and shapes before reading, to say what differs."""
    differences = [f"only in the checkpoint: {n}" for n in stored if n not in wanted]
    differences += [f"only in this run: {n}" for n in wanted if n not in stored]
    differences += [
        f"{n}: checkpoint {stored[n]}, this run {tuple(w.shape)}"
        for n, w in wanted.items()
        if n in stored and stored[n] != tuple(w.shape)
    ]
    if differences:
        shown = "\n  ".join(differences[:8])
        more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise CheckpointError(f"{folder} is of another state:\n  {shown}{more}")


def _flatten(state: Tree) -> dict[str, Any]:
    """Path -> array: no pickled structure, and names that a person can read."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            message = (
                f"two arrays of the state would be stored as {name!r}, one of them at "
                f"{jax.tree_util.keystr(path)}: rename it, for one would be lost"
            )
            raise CheckpointError(message)
        named[name] = leaf
    return named


def _files(folder: Path) -> list[str]:
    """All files below a folder but the manifest, as relative names."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    names = [str(p.relative_to(folder)) for p in found]
    return [name for name in names if name != "manifest.json"]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(folder: Path) -> str | None:
    """Why a checkpoint is not whole, or None."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        return "it was not finished (no manifest.json)"
    except (json.JSONDecodeError, UnicodeDecodeError):
        return "manifest.json is cut off"
    for name, digest in manifest.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} has changed since it was written"
    return None


def _candidates(folder: Path, which: str) -> list[Path]:
    """Checkpoint folders to try, the preferred one first."""
    if which == "best":
        marker = folder / "best"
        return [folder / marker.read_text().strip()] if marker.exists() else []
    if which != "latest":
        raise ValueError(f"which is 'latest' or 'best', not {which!r}")
    return sorted((p for p in folder.glob("step_*") if p.is_dir()), reverse=True)


def _prune(folder: Path, newest: int) -> None:
    """Remove what is neither recent, nor best, nor kept for ever."""
    best = _candidates(folder, "best")
    # Orbax writes beside the target and renames; a kill leaves such a folder behind.
    finished = [p for p in _candidates(folder, "latest") if _is_finished(p)]
    unfinished = [p for p in folder.glob("step_*") if not _is_finished(p)]
    for old in finished[newest:] + unfinished:
        if old not in best and not (old / "keep").exists():
            shutil.rmtree(old, ignore_errors=True)


def _is_finished(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _sync(folder: Path) -> None:
    """Make renames durable: a power cut must not leave a manifest without files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

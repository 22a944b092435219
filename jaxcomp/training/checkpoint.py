"""The checkpoints of a run: the newest ones, the best, and those kept for ever.

Each is a folder `step_NNNNNNNN`, as `jaxcomp.checkpoint` writes it, with what the host
knows in `position.json`. Where one is damaged, the one before it is used.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp import checkpoint, files
from jaxcomp.base import Tree
from jaxcomp.checkpoint import CheckpointError, Resizer
from jaxcomp.errors import UserError
from jaxcomp.processes import on_all_processes

__all__ = ["CheckpointError", "Checkpoints", "Restored", "open_checkpoints", "steps_in"]


class Restored(NamedTuple):
    """A state that `restore` has read, and where the run stood."""

    state: Tree
    position: dict[str, Any]
    step: int


class Checkpoints(NamedTuple):
    """Save and restore states in one folder."""

    # (state, position, step, keep_for_ever, is_best) -> None
    save: Callable[[Tree, dict[str, Any], int, bool, bool], None]
    # Like `save`, and returns once the state was copied to the host: a thread goes on.
    begin: Callable[[Tree, dict[str, Any], int, bool, bool], None]
    # Waits for what was begun; raises what went wrong on any process.
    finish: Callable[[], None]
    # Waits for what was begun here, after an error too.
    close: Callable[[], None]
    # (like, "latest" | "best") -> newest whole checkpoint, or None if there is none.
    # `like` is a tree of ShapeDtypeStructs with shardings.
    # With a third argument it also takes one of another number of workers.
    restore: Callable[..., Restored | None]


def open_checkpoints(folder: Path, newest: int = 2) -> Checkpoints:
    """Checkpoints in `folder`: the newest ones, the best, and those kept for ever.

    Args:
      folder: created when the first is saved.
      newest: how many recent ones are kept; with two, one may be damaged.
    """
    folder = folder.absolute()
    writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    begun: list[Future[None]] = []

    def begin(
        state: Tree, position: dict[str, Any], step: int, for_ever: bool, best: bool
    ) -> None:
        finish()
        target = folder / f"step_{step:08d}"
        is_first = jax.process_index() == 0
        if is_first:
            shutil.rmtree(target, ignore_errors=True)  # a damaged one, replayed
        texts = {"position.json": json.dumps(position, indent=1)}
        texts |= {"keep": ""} if for_ever else {}
        commit = checkpoint.begin(target, state, texts)

        def end() -> None:
            commit()
            if is_first and best:
                files.write_atomically(folder / "best", target.name)
            if is_first:
                _prune(folder, newest)

        begun.append(writer.submit(end))

    def finish() -> None:
        if begun:
            on_all_processes(begun.pop().result)

    def save(
        state: Tree, position: dict[str, Any], step: int, for_ever: bool, best: bool
    ) -> None:
        begin(state, position, step, for_ever, best)
        finish()

    def restore(
        like: Tree, which: str = "latest", resize: Resizer | None = None
    ) -> Restored | None:
        for candidate in _candidates(folder, which):
            problem = checkpoint.damage(candidate)
            if problem:
                message = f"skipping damaged checkpoint {candidate}: {problem}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                continue
            position = json.loads((candidate / "position.json").read_text())
            state = checkpoint.read(candidate, like, _renamed, resize)
            return Restored(state, position, int(candidate.name.removeprefix("step_")))
        _check_none_was_whole(folder, which)
        return None

    return Checkpoints(save, begin, finish, writer.shutdown, restore)


def steps_in(folder: Path) -> list[int]:
    """The steps of the finished checkpoints of a folder, in their order.

    Example:
      >>> steps_in(Path("nowhere"))
      []
    """
    finished = filter(_is_finished, _candidates(folder, "latest"))
    return sorted(int(path.name[5:]) for path in finished)


def _renamed(name: str) -> str | None:
    """The current name of a leaf that the first checkpoint format named otherwise.

    Example:
      >>> _renamed("batch_stats.value.mean"), _renamed("clock.step")
      ('stats.value.mean', None)
    """
    if name == "clock.step":
        return None  # the same as that of the link where workers talk
    return re.sub(r"^batch_stats\.", "stats.", name)


def _candidates(folder: Path, which: str) -> list[Path]:
    """Checkpoint folders to try, the preferred one first."""
    if which == "best":
        marker = folder / "best"
        return [folder / marker.read_text().strip()] if marker.exists() else []
    if which != "latest":
        raise UserError(f"which is 'latest' or 'best', not {which!r}")
    # Others' folders, such as step_3.bak, are none of ours.
    found = [p for p in folder.glob("step_*") if p.name[5:].isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def _check_none_was_whole(folder: Path, which: str) -> None:
    """Refuse to start over if finished checkpoints are there, but all are damaged."""
    found = _candidates(folder, which)
    if len(found) > 1 or any(map(_is_finished, found)):
        names = ", ".join(path.name for path in found)
        raise CheckpointError(
            f"no {which} checkpoint in {folder} is whole ({names}); nothing was "
            f"changed. Put a copy back, or remove {folder} to start over"
        )


def _prune(folder: Path, newest: int) -> None:
    """Remove what is neither recent, nor best, nor kept for ever."""
    best = _candidates(folder, "best")
    finished = [p for p in _candidates(folder, "latest") if _is_finished(p)]
    unfinished = [p for p in _candidates(folder, "latest") if not _is_finished(p)]
    for old in finished[newest:] + unfinished:
        if old not in best and not (old / "keep").exists():
            shutil.rmtree(old, ignore_errors=True)


def _is_finished(folder: Path) -> bool:
    return (folder / files.MANIFEST).exists()

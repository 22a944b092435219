"""The checkpoints of a run: the newest ones, the best, and those kept for ever.

Each is a folder `step_NNNNNNNN`, as `jaxcomp.checkpoint` writes it, with what the host
knows in `position.json`. Where one is damaged, the one before it is used.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax

from jaxcomp import checkpoint, files
from jaxcomp.base import Tree
from jaxcomp.checkpoint import CheckpointError, Resizer
from jaxcomp.errors import UserError
from jaxcomp.processes import on_all_processes
from jaxcomp.runs.folder import CHANGEABLE, check_config

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Restored",
    "check_which",
    "find_whole",
    "open_checkpoints",
    "step_of",
    "steps_in",
    "what_is_in",
]


Like: TypeAlias = Callable[[int], Tree]


class Restored(NamedTuple):
    """A state that `restore` has read, and where the run stood."""

    state: Tree
    position: dict[str, Any]
    step: int


class Checkpoints(NamedTuple):
    """Save and restore states in one folder."""

    # (state, position, step, keep_for_ever, is_best) -> None, once the state was
    # copied to the host: a thread goes on.
    begin: Callable[[Tree, dict[str, Any], int, bool, bool], None]
    # Waits for what was begun; raises what went wrong on any process.
    finish: Callable[[], None]
    # Waits for what was begun here, after an error too.
    close: Callable[[], None]
    # (like, which) -> that checkpoint, or None if there is none; as `find_whole` takes
    # it. `like` is a tree of ShapeDtypeStructs with shardings; or, where the state is
    # not the same throughout a run, a function from the step of the checkpoint to it.
    # With a third argument it also takes one of another number of workers.
    restore: Callable[..., Restored | None]


def open_checkpoints(
    folder: Path,
    newest: int = 2,
    config: dict[str, Any] | None = None,
    changeable: Mapping[str, str] = CHANGEABLE,
    before: Callable[[], None] = lambda: None,
) -> Checkpoints:
    """Checkpoints in `folder`: the newest ones, the best, and those kept for ever.

    Args:
      folder: created when the first is saved.
      newest: how many recent ones are kept; with two, one may be damaged.
      config: of the run, plain values. Each checkpoint has it, and one of another
        config is refused; those of older versions have none.
      changeable: keys of the config that may differ, with the reason.
      before: called by the first process before a checkpoint is written.
    """
    folder = folder.absolute()
    is_first = jax.process_index() == 0
    writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    begun: list[Future[None]] = []

    def begin(
        state: Tree, position: dict[str, Any], step: int, for_ever: bool, best: bool
    ) -> None:
        finish()
        target = folder / f"step_{step:08d}"

        def prepare() -> None:
            before()
            shutil.rmtree(target, ignore_errors=True)  # a damaged one, replayed

        on_all_processes(prepare if is_first else lambda: None)
        texts = {"position.json": json.dumps(position, indent=1)}
        texts |= {"config.json": json.dumps(config, indent=1)} if config else {}
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

    def restore(
        like: Tree | Like, which: str = "last", resize: Resizer | None = None
    ) -> Restored | None:
        found = find_whole(folder, which)
        if found is None:
            return None
        if config and (found / "config.json").exists():
            check_config(found, config, changeable)
        position = json.loads((found / "position.json").read_text())
        step = step_of(found)
        wanted = like(step) if callable(like) else like
        state = checkpoint.read(found, wanted, resize)
        return Restored(state, position, step)

    return Checkpoints(begin, finish, writer.shutdown, restore)


def check_which(which: str) -> str:
    """The name of a checkpoint, if it is one.

    Example:
      >>> check_which("first")
      Traceback (most recent call last):
      jaxcomp.errors.UserError: a checkpoint is 'best', 'last' or the number of its ...
    """
    if which in ("best", "last", "latest") or which.isdecimal():
        return which
    message = "a checkpoint is 'best', 'last' or the number of its step, not"
    raise UserError(f"{message} {which!r}")


def find_whole(folder: Path, which: str = "last") -> Path | None:
    """The folder of an undamaged checkpoint, or None if there is none.

    Args:
      folder: that holds the checkpoints of a run.
      which: "best", the number of a step, or "last" (also "latest"), where the newest
        one that is whole counts.
    """
    for candidate in _candidates(folder, which):
        problem = checkpoint.damage(candidate)
        if not problem:
            return candidate
        message = f"skipping damaged checkpoint {candidate}: {problem}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    _check_none_was_whole(folder, which)
    return None


def what_is_in(folder: Path) -> str:
    """The checkpoints that a folder holds, as a sentence.

    Example:
      >>> what_is_in(Path("nowhere"))
      'it holds none yet'
    """
    steps = steps_in(folder)
    if not steps:
        return "it holds none yet"
    best = f" (best: {step_of(found)})" if (found := find_whole(folder, "best")) else ""
    return f"it holds those of steps {', '.join(map(str, steps))}{best}"


def steps_in(folder: Path) -> list[int]:
    """The steps of the finished checkpoints of a folder, in their order.

    Example:
      >>> steps_in(Path("nowhere"))
      []
    """
    return sorted(step_of(p) for p in _candidates(folder, "last") if _is_finished(p))


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint, from the name of its folder.

    Example:
      >>> step_of(Path("run/checkpoints/step_00000022"))
      22
    """
    return int(checkpoint.name.removeprefix("step_"))


def _candidates(folder: Path, which: str) -> list[Path]:
    """Checkpoint folders to try, the preferred one first."""
    if which == "best":
        marker = folder / "best"
        return [folder / marker.read_text().strip()] if marker.exists() else []
    if check_which(which).isdecimal():
        one = folder / f"step_{int(which):08d}"
        return [one] if one.is_dir() else []
    # Others' folders, such as step_3.bak, are none of ours.
    found = [p for p in folder.glob("step_*") if p.name[5:].isdigit() and p.is_dir()]
    return sorted(found, key=step_of, reverse=True)


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
    finished = [p for p in _candidates(folder, "last") if _is_finished(p)]
    unfinished = [p for p in _candidates(folder, "last") if not _is_finished(p)]
    for old in finished[newest:] + unfinished:
        if old not in best and not (old / "keep").exists():
            shutil.rmtree(old, ignore_errors=True)


def _is_finished(folder: Path) -> bool:
    return (folder / files.MANIFEST).exists()

"""The weights with which a run begins: those of another run, or those of its seed."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import leaves, parallel
from jaxcomp.checkpoint_arrays import read_arrays
from jaxcomp.runs.errors import RunError
from jaxcomp.tasks import Variables
from jaxcomp.training.build import Setup
from jaxcomp.training.checkpoint import (
    check_which,
    find_whole,
    step_of,
    steps_in,
    what_is_in,
)
from jaxcomp.training.state import own

__all__ = ["Start", "begins", "parsed_source", "read_start"]


class Start(NamedTuple):
    """Weights of another run, on the host."""

    variables: Variables  # parameters and statistics of one worker
    checkpoint: Path
    step: int  # of that run


def begins(workdir: Path) -> bool:
    """Whether a folder has no checkpoint to go on from; the same on all processes."""
    is_new = jax.process_index() == 0 and not steps_in(workdir / "checkpoints")
    return bool(parallel.sum_over_processes(np.array([int(is_new)]))[0])


def read_start(source: str, setup: Setup) -> Start:
    """The weights of another run, for the model of this one.

    Where its workers have models or statistics of their own, their mean is taken.

    Args:
      source: config.init_from: the folder of a run, "FOLDER@best" or "FOLDER@STEP".
      setup: of the run that begins.

    Raises:
      RunError: there is no such checkpoint, or it is of another model; says in what.
    """
    folder, which = parsed_source(source)
    checkpoints = Path(folder).absolute() / "checkpoints"
    found = find_whole(checkpoints, which)
    if found is None:
        message = f"{folder} holds no checkpoint {which!r}; {what_is_in(checkpoints)}"
        raise RunError(f"init_from: {message}")
    stored = read_arrays(found)
    state = jax.eval_shape(setup.fresh)
    parts = [
        _part(name, own(getattr(state, name)), stored) for name in ("params", "stats")
    ]
    problems = [line for part in parts for line in part.problems]
    if problems:
        more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
        shown = "\n  ".join([*problems[:8], *more])
        raise RunError(f"init_from: {found} is of another model:\n  {shown}")
    return Start(Variables(*(part.tree for part in parts)), found, step_of(found))


class _Part(NamedTuple):
    """Parameters or statistics as they were stored, and what does not fit in them."""

    tree: Any
    problems: list[str]


def _part(name: str, like: Any, stored: dict[str, np.ndarray]) -> _Part:
    prefix, marked = f"{name}.", f"{name}.value."
    there = {n: array for n, array in stored.items() if n.startswith(prefix)}
    if there and all(n.startswith(marked) for n in there):
        # Each worker had its own: the first axis counts the workers.
        there = {prefix + n[len(marked) :]: a.mean(axis=0) for n, a in there.items()}
    wanted = leaves.by_name({name: like})
    problems = [f"only there: {n}" for n in there if n not in wanted]
    problems += [f"only here: {n}" for n in wanted if n not in there]
    problems += [
        f"{n}: there {list(there[n].shape)}, here {list(leaf.shape)}"
        for n, leaf in wanted.items()
        if n in there and there[n].shape != leaf.shape
    ]
    if problems:
        return _Part(None, problems)
    arrays = [there[n].astype(leaf.dtype) for n, leaf in wanted.items()]
    return _Part(jax.tree.unflatten(jax.tree.structure(like), arrays), [])


def parsed_source(source: str) -> tuple[str, str]:
    """Folder and checkpoint; an @ in the name of a folder belongs to it.

    Example:
      >>> parsed_source("runs/a@best"), parsed_source("me@home/a")
      (('runs/a', 'best'), ('me@home/a', 'last'))
    """
    found = re.fullmatch(r"(.+)@([^@/]+)", source)
    return (found[1], check_which(found[2])) if found else (source, "last")

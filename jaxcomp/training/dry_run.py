"""What a run would be: its method, bytes, memory and schedule, without a step of it."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Tree
from jaxcomp.data import DataError
from jaxcomp.data.stand_ins import stand_in_for
from jaxcomp.parallel import Workers
from jaxcomp.runs.folder import is_begun
from jaxcomp.runs.frame import traffic_line
from jaxcomp.runs.units import bytes_text
from jaxcomp.training.build import Setup, build, gather_workers, settled
from jaxcomp.training.changeable import changeable_keys
from jaxcomp.training.checkpoint import steps_in
from jaxcomp.training.console import headline
from jaxcomp.training.start import begins, read_start
from jaxcomp.training.traffic import run_traffic

__all__ = ["corners", "dry_run"]

_SHARE = 0.02  # of the peak rate: what a row of the schedule may leave out
_LOOKS = 500  # at the rate, beside those at the ends of epochs


def dry_run(config: Any, workdir: str | os.PathLike[str]) -> str:
    """Build what a run needs, write nothing, and say what the run would do.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workdir: run folder, which need not exist.

    Raises:
      UserError: as the run would.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workers = gather_workers(config)
        config = settled(config, workers)
        setup = _built(config, workers)
    notes = [str(warning.message) for warning in caught]
    lines = [
        f"run folder: {workdir}, {_place(config, Path(workdir))}",
        headline(config, setup),
        *_start(config, Path(workdir), setup),
        *_length(setup),
        *_bytes(setup, notes),
        _memory(setup),
        "",
        *_schedule(setup, setup.calendar.steps_at(config, "warmup")),
    ]
    lines += [f"WARNING: {note}" for note in notes]
    return "\n".join([*lines, "", "Nothing was trained or written: a dry run."])


def corners(x: np.ndarray, y: np.ndarray, tolerance: float) -> list[int]:
    """The points between which a curve is as good as straight, both ends included.

    Args:
      x: [points] rising.
      y: [points] of the curve.
      tolerance: how far a point may be above or below the straight line.

    Example:
      >>> x, y = np.arange(8), np.array([0, 1, 2, 3, 3, 3, 1, 1])
      >>> corners(x, y, tolerance=0.1)
      [0, 3, 5, 6, 7]
    """
    found, left = {0, len(x) - 1}, [(0, len(x) - 1)]
    while left:
        first, last = left.pop()
        part = slice(first, last + 1)
        line = np.interp(x[part], x[[first, last]], y[[first, last]])
        place = first + int(np.argmax(np.abs(y[part] - line)))
        if np.abs(y[place] - line[place - first]) > tolerance:
            found.add(place)
            left += [(first, place), (place, last)]
    return sorted(found)


def _built(config: Any, workers: Workers) -> Setup:
    """The setup of a run; of published shapes, if its data are not prepared."""
    try:
        return build(config, workers)
    except DataError as missing:
        stand_in = stand_in_for(config.dataset, config.data_dir or None)
        if not stand_in:
            raise
        warnings.warn(f"of published shapes only: {missing}", stacklevel=1)
        changed = config.copy_and_resolve_references()
        changed.dataset = stand_in
        return build(changed, workers)


def _place(config: Any, folder: Path) -> str:
    """What the folder holds; refuses one of another config."""
    plainly = json.loads(config.to_json())
    if not is_begun(folder, plainly, changeable_keys(config)):
        return "a new run"
    steps = steps_in(folder / "checkpoints")
    return f"goes on from step {max(steps)}" if steps else "begun, without a checkpoint"


def _start(config: Any, folder: Path, setup: Setup) -> Iterator[str]:
    """A line about the weights of another run, which are read as the run would."""
    if config.init_from and begins(folder):
        yield f"weights of {read_start(config.init_from, setup).checkpoint}"


def _length(setup: Setup) -> Iterator[str]:
    """How long the run is, and a line for each regime that begins in it."""
    calendar, total = setup.calendar, setup.total_steps
    epochs, examples = float(calendar.epochs(total)), calendar.examples(total)
    each = " or ".join(f"{p.horizon.steps_per_epoch:,}" for p in calendar.phases)
    yield f"{epochs:.4g} epochs of {each} steps, {examples:,} examples in all"
    yield from (str(r) for r in setup.regimes.each[1:] if r.first < total)


def _bytes(setup: Setup, notes: list[str]) -> Iterator[str]:
    """A line for the first and for the last step, where they differ; and for all."""
    total = setup.total_steps
    whole, found = run_traffic(setup)
    numbers = {setup.stages.at(n): n for n in (total - 1, 0)}
    for stage, number in reversed(numbers.items()):
        yield f"step {number + 1:,}, {stage}: {found[stage]}"
        if found[stage].wire > found[stage].dense:
            notes.append(f"step {number + 1:,} sends more than the gradient itself")
    told = traffic_line(whole.of(total), total, moved=False, whom=whole.whom)
    yield f"the run: {told}"


def _memory(setup: Setup) -> str:
    state = jax.eval_shape(setup.fresh)
    params, rest = _size(state.params), _size((state.stats, state.carry))
    kept, count = _size(state.opt_state), setup.workers.size
    where = "" if setup.workers.mesh else f", {bytes_text(count * _size(state))} of all"
    return (
        f"each worker keeps {bytes_text(_size(state))}{where}: parameters "
        f"{bytes_text(params)}, optimiser and memory {bytes_text(kept)}, others "
        f"{bytes_text(rest)}; gradients and activations come on top"
    )


def _size(tree: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _schedule(setup: Setup, warmup: int) -> Iterator[str]:
    """A short table of the learning rate, nearly straight from row to row."""
    calendar, total = setup.calendar, setup.total_steps
    ends = map(calendar.end_of, range(1, calendar.epoch_at(total - 1)))
    borders = [n for end in ends for n in (end, end + 1)]
    between = range(1, total + 1, -(-total // _LOOKS))
    steps = np.array(sorted({1, warmup or 1, *borders, *between, total}))
    rates = np.asarray(jax.jit(jax.vmap(setup.rate))(jnp.asarray(steps - 1)))
    yield f"{'step':>10}{'epoch':>9}  learning rate"
    for place in corners(steps, rates, _SHARE * float(rates.max())):
        step = int(steps[place])
        epochs = float(calendar.epochs(step))
        yield f"{step:>10,}{epochs:>9.2f}  {rates[place]:.4g}"

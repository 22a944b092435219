"""Checkpoints of a run: kept, resumed, resized, and begun from."""

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.checkpoint import leaves, save
from jaxcomp.checkpoint.resize import resized, workers_of
from jaxcomp.checkpoint.save import Resizer, read_arrays
from jaxcomp.core import files
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.types import PerWorker, Tree, is_per_worker
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.cluster import check_same
from jaxcomp.parallel.placing import spread_spec, sum_over_processes
from jaxcomp.runs.folder import RunError, check_config, note_fact, read_json
from jaxcomp.runs.open_run import Frame
from jaxcomp.training.plan import RunPlan
from jaxcomp.training.programs import Traffic
from jaxcomp.training.running_metrics import OwnScores, Scores, Totals
from jaxcomp.training.state import TrainState, unmark
from jaxcomp.training.tasks import Variables


class Progress(NamedTuple):
    """What the host knows at a step, beside the state; saved with it."""

    totals: Totals = Totals()
    seconds: float = 0.0
    best: float | None = None
    scores: Scores | None = None  # of the last evaluation
    own: OwnScores | None = None  # likewise
    sent: float = 0.0  # bytes of the messages of the whole run
    left: float = 0.0  # likewise, those that left a worker; NaN: not recorded
    exact: float = 0.0  # likewise, those that would have left it with `exact`
    skipped: float = 0.0  # steps of the epochs that have ended
    overflowed: float = 0.0  # likewise; the loss scale was too large for them
    workers: int = 0  # of the run at this step; 0: not recorded
    ema: Scores | None = None  # of the averaged weights, at the last evaluation

    def with_bytes(self, traffic: Traffic) -> "Progress":
        """Return this with the bytes of one more step."""
        totals = self.totals._replace(
            wire=self.totals.wire + traffic.wire,
            traced=self.totals.traced + bool(traffic.unread),
        )
        return self._replace(
            totals=totals,
            sent=self.sent + traffic.wire,
            left=self.left + traffic.left,
            exact=self.exact + traffic.exact,
        )


class Restored(NamedTuple):
    """A state that `restore` has read, and where the run stood."""

    state: Tree
    progress: dict[str, Any]  # as `plain` makes it
    step: int


class Checkpoints(NamedTuple):
    """Save and restore states in one folder."""

    # (state, plain progress, step, keep_for_ever, is_best) -> None, once the state was
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
    before: Callable[[], None] = lambda: None,
    *,
    elastic: bool = False,
) -> Checkpoints:
    """Checkpoints in `folder`: the newest ones, the best, and those kept for ever.

    Args:
      folder: created when the first is saved.
      newest: how many recent ones are kept; with two, one may be damaged.
      config: of the run, plain values. Each checkpoint has it, and one of another
        config is refused.
      before: called by the first process before a checkpoint is written.
      elastic: the number of workers may differ, whatever the config says.
    """
    folder = folder.absolute()
    is_first = jax.process_index() == 0
    writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    begun: list[Future[None]] = []

    def begin(
        state: Tree, progress: dict[str, Any], step: int, for_ever: bool, best: bool
    ) -> None:
        finish()
        target = folder / f"step_{step:08d}"

        def prepare() -> None:
            before()
            shutil.rmtree(target, ignore_errors=True)  # a damaged one, replayed

        on_all_processes(prepare if is_first else lambda: None)
        texts = {"position.json": json.dumps(progress, indent=1)}
        texts |= {"config.json": json.dumps(config, indent=1)} if config else {}
        texts |= {"keep": ""} if for_ever else {}
        commit = save.begin(target, state, texts)

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
        like: Tree | Callable[[int], Tree],
        which: str = "last",
        resize: Resizer | None = None,
    ) -> Restored | None:
        found = find_whole(folder, which)
        if found is None:
            return None
        if config:
            check_config(found, config, elastic=elastic)
        saved = json.loads((found / "position.json").read_text())
        step = step_of(found)
        wanted = like(step) if callable(like) else like
        state = save.read(found, wanted, resize)
        return Restored(state, saved, step)

    return Checkpoints(begin, finish, writer.shutdown, restore)


def check_which(which: str) -> str:
    """The name of a checkpoint, if it is one.

    Example:
      >>> check_which("first")
      Traceback (most recent call last):
      jaxcomp.UserError: a checkpoint is 'best', 'last' or the number of its ...
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
        problem = save.damage(candidate)
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


class Start(NamedTuple):
    """Weights of another run, on the host."""

    variables: Variables  # parameters and statistics of one worker
    checkpoint: Path
    step: int  # of that run


def begins(workdir: Path) -> bool:
    """Whether a folder has no checkpoint to go on from; the same on all processes."""
    is_new = jax.process_index() == 0 and not steps_in(workdir / "checkpoints")
    return bool(sum_over_processes(np.array([int(is_new)]))[0])


def read_start(source: str, plan: RunPlan) -> Start:
    """The weights of another run, for the model of this one.

    Where its workers have models or statistics of their own, their mean is taken.

    Args:
      source: config.init_from: the folder of a run, "FOLDER@best" or "FOLDER@STEP".
      plan: of the run that begins.

    Raises:
      RunError: there is no such checkpoint, or it is of another model; says in what.
    """
    folder, which = parsed_source(source)
    checkpoints = Path(folder).absolute() / "checkpoints"
    found = find_whole(checkpoints, which)
    if found is None:
        message = f"{folder} holds no checkpoint {which!r}; {what_is_in(checkpoints)}"
        raise RunError(f"init_from: {message}")
    state, stored = jax.eval_shape(plan.fresh), read_arrays(found)
    like = Variables(unmark(state.params), unmark(state.stats))
    wanted = leaves.by_name(like)
    there = of_one_worker("params", stored) | of_one_worker("stats", stored)
    # Another dtype is no other model.
    kinds = {n: wanted.get(n, array).dtype.name for n, array in there.items()}
    says = {n: leaves.Stored(array.shape, kinds[n]) for n, array in there.items()}
    blank = {n: np.zeros(leaf.shape, leaf.dtype) for n, leaf in wanted.items()}
    try:
        leaves.check_fit(blank, says, found)
    except CheckpointError as error:
        raise RunError(f"init_from: {error}") from None
    arrays = [there[n].astype(leaf.dtype) for n, leaf in wanted.items()]
    variables = jax.tree.unflatten(jax.tree.structure(like), arrays)
    return Start(variables, found, step_of(found))


def of_one_worker(part: str, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of "params" or "stats"; the means where each worker has its own.

    Example:
      >>> of_one_worker("params", {"params.value.w": np.array([[0.0], [4.0]])})
      {'params.w': array([2.])}
    """
    prefix, marked = f"{part}.", f"{part}.value."
    there = {n: array for n, array in stored.items() if n.startswith(prefix)}
    if not all(n.startswith(marked) for n in there):
        return there
    return {prefix + n[len(marked) :]: x.mean(axis=0) for n, x in there.items()}


def parsed_source(source: str) -> tuple[str, str]:
    """Folder and checkpoint; an @ in the name of a folder belongs to it.

    Example:
      >>> parsed_source("runs/a@best"), parsed_source("me@home/a")
      (('runs/a', 'best'), ('me@home/a', 'last'))
    """
    found = re.fullmatch(r"(.+)@([^@/]+)", source)
    return (found[1], check_which(found[2])) if found else (source, "last")


def plain(progress: Progress) -> dict[str, Any]:
    """The progress as values for JSON, which keeps floats exactly."""
    return {**progress._asdict(), "totals": progress.totals._asdict()}


def _progress(saved: dict[str, Any]) -> Progress:
    """The inverse of `plain`."""
    scores, own, ema = (saved.get(name) for name in ("scores", "own", "ema"))
    parts = {
        "totals": Totals(**saved["totals"]),
        "scores": scores and Scores(*scores),
        "own": own and OwnScores(*own),
        "ema": ema and Scores(*ema),
    }
    of_older = {"left": math.nan, "exact": math.nan}
    known = {name: x for name, x in saved.items() if name in Progress._fields}
    return Progress(**{**of_older, **known, **parts})


def resume(
    plan: RunPlan, frame: Frame, checkpoints: Checkpoints, start: Start | None
) -> tuple[TrainState, Progress, int]:
    """State, progress and step of the newest whole checkpoint, or the fresh ones.

    A fresh state is made only if there is no checkpoint, because two states may need
    more memory than the devices have.

    Args:
      plan: of the run.
      frame: of the run.
      checkpoints: of the run.
      start: the weights of another run, for a state that is fresh.
    """
    workers, total, say = plan.workers, plan.total_steps, frame.show.say
    resize = make_resize(plan, allowed=plan.config.elastic)
    restored = checkpoints.restore(saved_like(plan), "last", resize)
    if restored is None:
        if start:
            say(f"weights of {start.checkpoint}")
            if frame.writes:
                facts = {"checkpoint": str(start.checkpoint), "step": start.step}
                note_fact(frame.folder, "init_from", facts)
        fresh = plan.fresh(start=start.variables if start else None)
        state, progress, step = parallel.spread(fresh, workers), Progress(), 0
    else:
        state, step = restored.state, restored.step
        progress = _progress(restored.progress)
    if step > total:
        message = (
            f"the run is at step {step} already, and train_for ends it at "
            f"step {total}: make it longer, or take another --workdir"
        )
        raise UserError(message)
    check_same({"the step of the newest checkpoint": str(step)})
    if step:
        say(f"going on from step {step} of {total} in {frame.folder}")
    before, now = progress.workers, workers.size
    if before not in (0, now):
        say(f"from here on there are {now} workers; there were {before}")
        if frame.writes:  # changes at later steps, which a checkpoint has undone, go
            noted = read_json(frame.folder / "environment.json")
            earlier = noted.get("workers_changed", [])
            kept = [change for change in earlier if change["step"] < step]
            change = {"step": step, "before": before, "now": now}
            note_fact(frame.folder, "workers_changed", [*kept, change])
    return state, progress._replace(workers=now), step


def saved_like(plan: RunPlan) -> Callable[[int], Tree]:
    """Make a function from the step of a checkpoint to what it holds.

    That is the state of the segment of its last step: a switch comes with the next one.

    Args:
      plan: of the run.
    """

    def like(done: int) -> Tree:
        segment = plan.segments.number(done - 1)
        fresh = jax.eval_shape(lambda: plan.fresh(segment))
        return spread_spec(fresh, plan.workers)

    return like


def make_resize(plan: RunPlan, *, allowed: bool) -> Resizer:
    """What `Checkpoints.restore` calls for a state of another number of workers.

    Args:
      plan: of the run, for the present workers.
      allowed: if not, such a checkpoint is refused, and the error says what to add.
    """

    def resize(state: TrainState, workers: int) -> TrainState:
        if not allowed:
            raise RunError(
                f"the newest checkpoint is of {workers_of(state)} workers, and the "
                f"config says {workers}: add --config.elastic=True to go on all the "
                "same"
            )
        # Each example of a batch has a carry, and a batch is divided in order.
        carry = jax.tree.map(
            lambda x: x.reshape(workers, -1, *x.shape[2:]), state.carry.value
        )
        rest = state._replace(carry=(), loss_scale=())
        new = resized(rest, workers, plan.method, lambda state: state.params)
        scale = state.loss_scale
        if is_per_worker(scale):  # the smallest, which overflows on no worker, for all
            scale = jax.tree.map(lambda x: np.full(workers, np.min(x), x.dtype), scale)
        return new._replace(carry=PerWorker(carry), loss_scale=scale)

    return resize

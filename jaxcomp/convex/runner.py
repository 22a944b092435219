"""The convex testbed as a run: simulated workers, records, checkpoints."""

import hashlib
import io
import json
import math
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.convex.experiment import Experiment, build, partition_of
from jaxcomp.convex.problems import Features, Rows, objective, stochastic_gradient
from jaxcomp.core.errors import RunFailed
from jaxcomp.core.files import CheckpointError, write_atomically
from jaxcomp.core.trees import name_of
from jaxcomp.core.types import is_report
from jaxcomp.core.units import bytes_text
from jaxcomp.data import Partition, worker_batches
from jaxcomp.mixers.gossip.topology import graph_facts
from jaxcomp.parallel import AXIS
from jaxcomp.runs.folder import RunError, check_config, is_begun
from jaxcomp.runs.open_run import (
    Display,
    Frame,
    Interrupted,
    keep_programs,
    open_run,
    traffic_line,
)
from jaxcomp.runs.table import EVALUATIONS, Evaluation, open_table, read_table
from jaxcomp.transforms.distributed import DistributedState


class Crew(NamedTuple):
    """State of all workers. All leaves but the step count have a worker axis first."""

    models: jax.Array  # [workers, features]
    averages: jax.Array  # over the steps, of each worker's models; the same shape
    link: DistributedState


class Simulation(NamedTuple):
    """Two functions: the initial state, and the state some steps later."""

    start: Callable[[], Crew]
    # (crew, int [steps, workers, examples of each], seed) -> crew
    advance: Callable[[Crew, np.ndarray, int], Crew]


def make_simulation(experiment: Experiment) -> Simulation:
    """Distributed SGD, simulated for all workers at once.

    Worker i starts from the model x_i = 0. In step t it computes an update

        u_i = -eta_t grad f_i(x_i)

    where f_i is the loss of its batch and eta_t the learning rate. The method then says
    what is added to its model: an exchange gives the average of the (compressed)
    updates of all workers; a mixer adds u_i and averages the models of neighbours.

    Gradients are multiplied by the learning rate before they reach the method. So a
    memory keeps updates that were scaled with the rate of their own step, as in
    Mem-SGD.

    Args:
      experiment: the problem, the method and the learning rate.

    Returns:
      The functions that start and advance the simulation.

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """
    problem, link, workers = experiment.problem, experiment.link, experiment.workers
    features, labels = _on_device(problem.features), jnp.asarray(problem.labels)
    # All workers share one step count, which is not mapped. Under vmap a branch on a
    # mapped count would run all branches and select one result.
    axes = cast(Any, Crew)(0, 0, cast(Any, DistributedState)(None, 0, 0))

    def start() -> Crew:
        def fresh(x: jax.Array) -> Crew:
            return Crew(x, x, cast(DistributedState, link.init(x)))

        zeros = jnp.zeros((workers, problem.dimension), jnp.float32)
        return jax.vmap(fresh, axis_size=workers, out_axes=axes)(zeros)

    def worker(
        crew: Crew, batches: jax.Array, key: jax.Array, features: Any, labels: Any
    ) -> Crew:
        def step(crew: Crew, batch: jax.Array) -> tuple[Crew, None]:
            x, t = crew.models, crew.link.step
            gradient = stochastic_gradient(
                features, labels, x, batch, problem.regulariser
            )
            own = -experiment.rate(t) * gradient
            mixed: Any = link.update(own, crew.link, x, key=key)
            x = x + mixed[0]
            return Crew(x, experiment.average(crew.averages, x, t), mixed[1]), None

        return jax.lax.scan(step, crew, batches)[0]

    given = (axes, 1, None, None, None)
    everyone = jax.vmap(worker, in_axes=given, out_axes=axes, axis_name=AXIS)
    program = jax.jit(everyone)

    def advance(crew: Crew, batches: np.ndarray, seed: int) -> Crew:
        chosen = jnp.asarray(batches, jnp.int32)
        return program(crew, chosen, jax.random.key(seed), features, labels)

    return Simulation(start, advance)


def batches_between(
    divided: Partition, batch_size: int, first: int, last: int
) -> np.ndarray:
    """The examples of steps first to last - 1, [steps, workers, examples of each].

    Example:
      >>> from jaxcomp.data import make_partition
      >>> divided = make_partition("random", np.zeros(6), workers=3, seed=0)
      >>> batches_between(divided, 3, first=1, last=6).shape  # an epoch is two steps
      (5, 3, 1)
    """
    per_epoch = divided.examples // batch_size
    parts = []
    while first < last:
        epoch, place = divmod(first, per_epoch)
        end = min(per_epoch, place + last - first)
        whole = worker_batches(divided, epoch=epoch, global_batch=batch_size)
        parts.append(whole[place:end])
        first += end - place
    return np.concatenate(parts)


def score(experiment: Experiment, crew: Crew) -> dict[str, float]:
    """How far the workers are from the optimum, and from each other, in float64.

    Returns:
      Three columns of `Evaluation`, by name.
    """
    value = objective(experiment.problem).value
    models = np.asarray(crew.models, np.float64)
    averages = np.asarray(crew.averages, np.float64)
    if not (np.isfinite(models).all() and np.isfinite(averages).all()):
        names = "suboptimality", "worst_suboptimality", "consensus_distance"
        return dict.fromkeys(names, np.nan)
    distances = np.square(models - models.mean(axis=0)).sum(axis=1)
    same = (averages == averages[0]).all()
    own = [value(x) for x in (averages[:1] if same else averages)]
    return {
        "suboptimality": value(averages.mean(axis=0)) - experiment.optimum.value,
        "worst_suboptimality": max(own) - experiment.optimum.value,
        "consensus_distance": float(np.sqrt(distances.mean())),
    }


def _on_device(features: Features) -> Features:
    if isinstance(features, Rows):
        indices, values = jnp.asarray(features.indices), jnp.asarray(features.values)
        return Rows(indices, values, features.width)
    return jnp.asarray(features)


# 1: without its number, and with what the last step reported.
FORMAT = 2


class State(NamedTuple):
    """What a run is resumed from: all workers after the steps before an evaluation."""

    crew: Crew
    repetition: int  # from 0
    step: int
    rows: int  # written to metrics.csv so far


def read_rows(path: Path) -> list[Evaluation]:
    """The evaluations in a metrics.csv, in the order in which they were made.

    Example:
      >>> import tempfile
      >>> from jaxcomp.runs.table import open_table
      >>> row = Evaluation(0, 10, 0.5, 1920, 0.25, 0.5, 0.125, 1.0, 192.0, 9.0)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder) / "metrics.csv"
      ...     append = open_table(path, EVALUATIONS, lambda row: True)
      ...     append(row._asdict())
      ...     read_rows(path) == [row]
      True
    """
    table = read_table(path, EVALUATIONS)
    kinds = Evaluation.__annotations__.values()
    return [
        Evaluation(*(kind(value) for kind, value in zip(kinds, row, strict=True)))
        for row in zip(*table.values(), strict=True)
    ]


def save_state(path: Path, state: State) -> None:
    """Write a state, so that a kill leaves the old file or the new one.

    The file also holds the number of its format and a SHA-256 of everything else in it.
    What the last step reported is left out, as in the checkpoints of training.
    """
    named, _ = jax.tree_util.tree_flatten_with_path(state, is_report)
    arrays = {_name(p): np.asarray(x) for p, x in named if not is_report(x)}
    arrays["format"] = np.asarray(FORMAT)
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, sha256=_digest(arrays), **arrays)
    write_atomically(path, whole.getvalue())


def load_state(path: Path, like: Crew) -> State | None:
    """The state in a file, or None if there is no file or it is damaged.

    A run without its state starts again and comes to the same figures.

    Args:
      path: the file.
      like: a crew of the same config; what steps report is taken from it.

    Raises:
      CheckpointError: a later version of jaxcomp wrote the file.
    """
    if not path.exists():
        return None
    try:
        # NumPy would leave open a damaged file that it opened itself.
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("sha256")) != _digest(arrays):
            raise ValueError("it has changed since it was written")
        version = int(arrays.get("format", 1))
        if version <= FORMAT:
            return _restored(arrays, like)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        message = f"{path} is damaged ({error}): the run starts again"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    raise CheckpointError(
        f"{path} was written by a later jaxcomp, in format {version}; this one knows "
        f"those up to {FORMAT}. Update jaxcomp, or take another folder"
    )


def _restored(arrays: dict[str, np.ndarray], like: Crew) -> State:
    read: State = jax.tree_util.tree_map_with_path(
        lambda p, x: x if is_report(x) else _fitting(arrays, _name(p), x),
        State(like, 0, 0, 0),
        is_leaf=is_report,
    )
    return State(read.crew, int(read.repetition), int(read.step), int(read.rows))


def _fitting(arrays: dict[str, np.ndarray], name: str, like: Any) -> np.ndarray:
    """The stored array of a leaf. NumPy stores bfloat16 as two bytes without a type."""
    wanted = np.asarray(like)
    if arrays[name].shape != wanted.shape:
        raise ValueError(f"{name} is {arrays[name].shape}, not {wanted.shape}")
    return arrays[name].view(wanted.dtype)


def _name(path: Any) -> str:
    return name_of(path, separator=".")


def _digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


_STATE, _TABLE = "state.npz", "metrics.csv"
# A run whose suboptimality exceeds f(0) - f* by this factor is stopped as diverged.
_LOST = 1e3


class ConvexDiverged(RunFailed, ArithmeticError):
    """The models move away from the optimum, or are not finite."""


class ConvexResult(NamedTuple):
    """The outcome of a run."""

    rows: list[Evaluation]  # of all seeds
    start: float  # f(0) - f*
    experiment: Experiment
    folder: Path

    @property
    def finals(self) -> list[Evaluation]:
        """The last evaluation of each seed."""
        return [row for row in self.rows if row.step == self.experiment.total_steps]


def run(config: Any, workdir: str | os.PathLike[str]) -> ConvexResult:
    """Run the experiment of a config, or resume it where the folder's run stopped.

    Args:
      config: ConfigDict with the keys of configs/convex/base.py.
      workdir: run folder. If it is empty or absent, a new run starts. If it holds a run
        of the same config, that one continues from its last saved evaluation.

    Returns:
      All evaluations, and what they belong to.

    Raises:
      UserError: a name or value in the config; the message lists the valid ones.
      NotConverged: the optimum of the problem cannot be computed.
      Diverged: the message says at which step, and what to lower.
      Interrupted: SIGTERM or Ctrl-C; the state was saved before.
    """
    kept = keep_programs()
    experiment = build(config)
    start = objective(experiment.problem).value(np.zeros(experiment.problem.dimension))
    facts = {
        "problem": experiment.problem.name,
        "regulariser": experiment.problem.regulariser,
        "optimum": experiment.optimum.value,
        "start": start,
        "method": experiment.method.name,
        "wire_bytes_per_step": list(experiment.traffic.wire),
        "simulated": True,
        **graph_facts(config.topology, config.workers),
    }
    above = start - experiment.optimum.value
    total = experiment.total_steps * config.seeds
    with open_run(workdir, json.loads(config.to_json()), facts, total) as frame:
        frame.show.say(_headline(experiment))
        frame.show.say(kept)
        rows = _run(config, experiment, above, frame)
        return ConvexResult(rows, above, experiment, frame.folder)


def dry_run(config: Any, workdir: str | os.PathLike[str]) -> str:
    """What the run of a config would do, of which nothing is done or written."""
    experiment = build(config)
    is_known = is_begun(Path(workdir), json.loads(config.to_json()))
    place = "which holds a run of this config" if is_known else "a new run"
    steps = f"{experiment.total_steps:,} steps with each of {config.seeds} seeds"
    lines = [f"run folder: {workdir}, {place}", _headline(experiment), steps]
    return "\n".join([*lines, "Nothing was run or written: a dry run."])


def evaluate(
    config: Any, workdir: str | os.PathLike[str], which: str, split: str = "train"
) -> Evaluation:
    """Evaluate the state that a run has saved.

    Args:
      config: of the run.
      workdir: its folder.
      which: "last" or "latest", because a convex run keeps no other state.
      split: "train": the objective is of all examples, of which none is for testing.

    Example:
      >>> evaluate(None, "runs/convex", "best")
      Traceback (most recent call last):
      jaxcomp.runs.folder.RunError: a convex run saves its last state alone: ...
    """
    if split != "train":
        raise RunError(f"a convex run has no split {split!r}: leave --split out")
    if which not in ("last", "latest"):
        raise RunError(
            "a convex run saves its last state alone: --evaluate=last. All of its "
            f"evaluations are in metrics.csv of {workdir}"
        )
    folder = Path(workdir)
    check_config(folder, json.loads(config.to_json()))
    experiment = build(config)
    state = load_state(folder / _STATE, make_simulation(experiment).start())
    if state is None:
        raise RunError(f"{workdir} holds no saved state; let it run first")
    return _evaluate(experiment, state, config.seed + state.repetition)


def summary(result: ConvexResult) -> dict[str, str]:
    """The outcome of a run in words, by name, for the console."""
    ends = [row.suboptimality for row in result.finals]
    seeds = f"seed {result.finals[0].seed}"
    if len(ends) > 1:
        seeds = f"{len(ends)} seeds, {min(ends):.3g} to {max(ends):.3g}"
    steps, traffic = result.experiment.total_steps, result.experiment.traffic
    return {
        "suboptimality": f"{np.median(ends):.3g} ({seeds}), from {result.start:.3g}",
        "each worker": traffic_line(traffic.of(steps), steps, moved=False),
    }


def _run(
    config: Any, experiment: Experiment, above: float, frame: Frame
) -> list[Evaluation]:
    """Run all repetitions, from one evaluation to the next."""
    folder, show = frame.folder, frame.show
    simulation, total = make_simulation(experiment), experiment.total_steps
    state, rows = _resume(config, folder, experiment, simulation.start(), show)
    known = {(row.seed, row.step) for row in rows}
    append = open_table(
        folder / _TABLE, EVALUATIONS, lambda row: (row["seed"], row["step"]) in known
    )
    while True:
        seed = config.seed + state.repetition
        divided = partition_of(config, experiment.problem.labels, seed)
        while state.step < total:
            first, last = state.step, min(state.step + experiment.eval_steps, total)
            batches = batches_between(divided, config.batch_size, first, last)
            crew = simulation.advance(state.crew, batches, seed)
            state = State(crew, state.repetition, last, state.rows + 1)
            rows.append(_evaluate(experiment, state, seed))
            append(rows[-1]._asdict())
            _report(rows[-1], experiment, state, show)
            _check(rows[-1], above, config)
            due = last // experiment.save_steps > first // experiment.save_steps
            signum = frame.caught()
            if due or signum or last == total:
                frame.secure()
                save_state(folder / _STATE, state)
            if signum:
                message = f"stopped at step {last}, seed {seed}; saved in {folder}"
                raise Interrupted(signum, message)
        if state.repetition + 1 >= config.seeds:
            return rows
        state = State(simulation.start(), state.repetition + 1, 0, state.rows)


def _resume(
    config: Any, folder: Path, experiment: Experiment, fresh: Crew, show: Display
) -> tuple[State, list[Evaluation]]:
    """The state and evaluations that the folder's run has saved, or a new state."""
    state, rows = load_state(folder / _STATE, fresh), read_rows(folder / _TABLE)
    if state is None or len(rows) < state.rows:
        if state is not None:
            show.say(f"{folder / _TABLE} lacks rows of its run, which starts again")
        return State(fresh, 0, 0, 0), []
    if (state.repetition + 1, state.step) != (config.seeds, experiment.total_steps):
        step = f"step {state.step} of {experiment.total_steps}"
        show.say(f"going on from {step}, seed {config.seed + state.repetition}")
    return state, rows[: state.rows]


def _evaluate(experiment: Experiment, state: State, seed: int) -> Evaluation:
    sent, left, exact = experiment.traffic.of(state.step)
    return Evaluation(
        seed=seed,
        step=state.step,
        epoch=state.step / experiment.horizon.steps_per_epoch,
        bytes_sent=sent,
        bytes_left=left,
        exact_bytes_left=exact,
        learning_rate=float(experiment.rate(state.step - 1)),
        **score(experiment, state.crew),
    )


def _report(
    row: Evaluation, experiment: Experiment, state: State, show: Display
) -> None:
    """Move the progress bar, and print a line about ten times per seed."""
    total = experiment.total_steps
    done = state.repetition * total + row.step
    show.step(done, f"suboptimality {row.suboptimality:.2e}")
    before = max(row.step - experiment.eval_steps, 0)
    if 10 * row.step // total > 10 * before // total:
        show.say(
            f"seed {row.seed}  epoch {row.epoch:6.2f}  suboptimality "
            f"{row.suboptimality:.3e}  worst {row.worst_suboptimality:.3e}  apart "
            f"{row.consensus_distance:.2e}  lr {row.learning_rate:.3g}  "
            f"{bytes_text(row.bytes_sent)}"
        )


def _check(row: Evaluation, above: float, config: Any) -> None:
    """Stop a run that has diverged, and say what to change."""
    if math.isfinite(row.suboptimality) and row.suboptimality <= _LOST * above:
        return
    if math.isfinite(row.suboptimality):
        found = f"suboptimality is {row.suboptimality:.3g}, from {above:.3g} at first"
    else:
        found = "the models are not finite"
    gamma = " or the gamma of the mixer" if "gamma" in config.mixer else ""
    raise ConvexDiverged(
        f"diverged by step {row.step} (seed {row.seed}): {found}. Lower learning_rate="
        f"{config.learning_rate!r}{gamma}: a larger tau or a smaller a of 'decay', a "
        "smaller rate of the others"
    )


def _headline(experiment: Experiment) -> str:
    problem, optimum = experiment.problem, experiment.optimum
    steps = len(experiment.traffic.wire)
    sent = bytes_text(experiment.traffic.of(steps)[0])
    per = "step" if steps == 1 else f"{steps} steps"
    return (
        f"{problem.name}: {problem.examples} examples, {problem.dimension} features, "
        f"f* = {optimum.value:.10g}\n{experiment.method.name}, {experiment.workers} "
        f"simulated workers; each would send {sent} per {per}"
    )

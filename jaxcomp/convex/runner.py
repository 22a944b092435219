"""Run a convex experiment: from a config to a folder with tables and a state."""

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.convex.experiment import Experiment, build, partition_of
from jaxcomp.convex.record import State, load_state, read_rows, save_state
from jaxcomp.convex.simulation import Crew, batches_between, make_simulation, score
from jaxcomp.errors import RunFailed
from jaxcomp.gossip.picture import graph_facts
from jaxcomp.problems import objective
from jaxcomp.runs.errors import RunError
from jaxcomp.runs.folder import check_config, is_begun
from jaxcomp.runs.frame import Frame, framed, traffic_line
from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.runs.metrics import EVALUATIONS, Evaluation
from jaxcomp.runs.programs import keep_programs
from jaxcomp.runs.progress import Display
from jaxcomp.runs.table import open_table
from jaxcomp.runs.units import bytes_text

__all__ = ["Diverged", "Result", "dry_run", "evaluate", "run", "summary"]

_STATE, _TABLE = "state.npz", "metrics.csv"
# A run whose suboptimality exceeds f(0) - f* by this factor is stopped as diverged.
_LOST = 1e3


class Diverged(RunFailed, ArithmeticError):
    """The models move away from the optimum, or are not finite."""


class Result(NamedTuple):
    """The outcome of a run."""

    rows: list[Evaluation]  # of all seeds
    start: float  # f(0) - f*
    experiment: Experiment
    folder: Path

    @property
    def finals(self) -> list[Evaluation]:
        """The last evaluation of each seed."""
        return [row for row in self.rows if row.step == self.experiment.total_steps]


def run(config: Any, workdir: str | os.PathLike[str]) -> Result:
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
    with framed(workdir, json.loads(config.to_json()), facts, total) as frame:
        frame.show.say(_headline(experiment))
        frame.show.say(kept)
        rows = _run(config, experiment, above, frame)
        return Result(rows, above, experiment, frame.folder)


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
      jaxcomp.runs.errors.RunError: a convex run saves its last state alone: ...
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


def summary(result: Result) -> dict[str, str]:
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
    raise Diverged(
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

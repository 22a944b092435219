"""A convex run: from a config and a folder to suboptimality over bytes and steps."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.convex import objective
from jaxcomp.convex.record import (
    Row,
    State,
    append_row,
    load_state,
    read_rows,
    save_state,
    write_rows,
)
from jaxcomp.convex.setting import Setting, Traffic, build, partition_of
from jaxcomp.convex.simulation import Crew, batches_between, make_simulation, score
from jaxcomp.errors import RunFailed
from jaxcomp.training.interrupt import Interrupted, catch_signals
from jaxcomp.training.progress import Display, bytes_text, display
from jaxcomp.training.run_folder import open_run

__all__ = ["Diverged", "Result", "closing_lines", "run"]

_STATE, _TABLE = "state.npz", "metrics.csv"
# f(0) - f* grown by this much will not come back in any run worth waiting for.
_LOST = 1e3


class Diverged(RunFailed, ArithmeticError):
    """The workers left the optimum for good."""


class Result(NamedTuple):
    """What a run ends with."""

    rows: list[Row]  # of all seeds
    optimum: float  # f*
    start: float  # f(0) - f*
    steps: int
    traffic: Traffic
    folder: Path

    @property
    def finals(self) -> list[Row]:
        """The last evaluation of each seed."""
        return [row for row in self.rows if row.step == self.steps]


def run(config: Any, workdir: str | Path) -> Result:
    """Solve a convex problem as a config says, from where the folder's run stands.

    Args:
      config: ConfigDict with the keys of configs/convex/base.py.
      workdir: run folder. Empty or absent: a new run. With a run of the same config:
        goes on from its last saved evaluation.

    Returns:
      All evaluations.

    Raises:
      UserError: a name or value in the config; the message lists the valid ones.
      NotConverged: the problem has no optimum that can be computed.
      Diverged: says at which step, and what to lower.
      Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    folder, setting = Path(workdir), build(config)
    start = objective(setting.problem).value(np.zeros(setting.problem.dimension))
    facts = {
        "problem": setting.problem.name,
        "regulariser": setting.problem.regulariser,
        "optimum": setting.optimum.value,
        "start": start,
        "method": setting.method.name,
        "wire_bytes_per_step": list(setting.traffic.wire),
        "plain_bytes_per_step": list(setting.traffic.plain),
        "simulated": True,
    }
    open_run(folder, json.loads(config.to_json()), facts)
    above = start - setting.optimum.value
    with (
        catch_signals() as caught,
        display(setting.total_steps * config.seeds) as show,
    ):
        show.say(_headline(setting))
        rows = _run(config, folder, setting, above, show, caught)
    return Result(
        rows=rows,
        optimum=setting.optimum.value,
        start=above,
        steps=setting.total_steps,
        traffic=setting.traffic,
        folder=folder,
    )


def closing_lines(result: Result) -> str:
    """The end of a run in three lines."""
    ends = [row.suboptimality for row in result.finals]
    sent = bytes_text(result.traffic.sent(result.steps))
    less = f"{result.traffic.ratio(result.steps):.3g}x less than without compression"
    seeds = f"seed {result.finals[0].seed}"
    if len(ends) > 1:
        seeds = f"{len(ends)} seeds, {min(ends):.3g} to {max(ends):.3g}"
    return "\n".join(
        [
            f"suboptimality  {np.median(ends):.3g} ({seeds}), from {result.start:.3g}",
            f"each worker    would have sent {sent} ({less}) in {result.steps} steps",
            f"run folder     {result.folder}",
        ]
    )


def _run(
    config: Any,
    folder: Path,
    setting: Setting,
    above: float,
    show: Display,
    caught: Callable[[], int | None],
) -> list[Row]:
    """All repetitions, an evaluation at a time."""
    simulation, total = make_simulation(setting), setting.total_steps
    state, rows = _resume(config, folder, setting, simulation.start(), show)
    write_rows(folder / _TABLE, rows)
    while True:
        seed = config.seed + state.repetition
        divided = partition_of(config, setting.problem.labels, seed)
        while state.step < total:
            first, last = state.step, min(state.step + setting.eval_steps, total)
            batches = batches_between(divided, config.batch_size, first, last)
            crew = simulation.advance(state.crew, batches, seed)
            state = State(crew, state.repetition, last, state.rows + 1)
            rows.append(_evaluate(setting, state, seed))
            append_row(folder / _TABLE, rows[-1])
            _report(rows[-1], setting, state, show)
            _check(rows[-1], above, config)
            due = last // setting.save_steps > first // setting.save_steps
            signum = caught()
            if due or signum or last == total:
                save_state(folder / _STATE, state)
            if signum:
                message = f"stopped at step {last}, seed {seed}; saved in {folder}"
                raise Interrupted(signum, message)
        if state.repetition + 1 >= config.seeds:
            return rows
        state = State(simulation.start(), state.repetition + 1, 0, state.rows)


def _resume(
    config: Any, folder: Path, setting: Setting, fresh: Crew, show: Display
) -> tuple[State, list[Row]]:
    """Where the folder's run stands, and its rows up to there; or a new run."""
    state, rows = load_state(folder / _STATE, fresh), read_rows(folder / _TABLE)
    if state is None:
        return State(fresh, 0, 0, 0), []
    if len(rows) < state.rows:
        show.say(f"{folder / _TABLE} lacks rows of its run, which starts again")
        return State(fresh, 0, 0, 0), []
    if (state.repetition + 1, state.step) != (config.seeds, setting.total_steps):
        step = f"step {state.step} of {setting.total_steps}"
        show.say(f"going on from {step}, seed {config.seed + state.repetition}")
    return state, rows[: state.rows]


def _evaluate(setting: Setting, state: State, seed: int) -> Row:
    found = score(setting, state.crew)
    return Row(
        seed=seed,
        step=state.step,
        epoch=state.step / setting.horizon.steps_per_epoch,
        bytes_sent=setting.traffic.sent(state.step),
        learning_rate=float(setting.rate(state.step - 1)),
        **found._asdict(),
    )


def _report(row: Row, setting: Setting, state: State, show: Display) -> None:
    """The bar moves at every evaluation; a line stays about ten times a seed."""
    total = setting.total_steps
    done = state.repetition * total + row.step
    show.step(done, f"suboptimality {row.suboptimality:.2e}")
    before = max(row.step - setting.eval_steps, 0)
    if 10 * row.step // total > 10 * before // total:
        show.say(
            f"seed {row.seed}  epoch {row.epoch:6.2f}  suboptimality "
            f"{row.suboptimality:.3e}  worst {row.worst_suboptimality:.3e}  apart "
            f"{row.consensus_distance:.2e}  lr {row.learning_rate:.3g}  "
            f"{bytes_text(row.bytes_sent)}"
        )


def _check(row: Row, above: float, config: Any) -> None:
    """End a run that is lost, with what might save the next one."""
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


def _headline(setting: Setting) -> str:
    problem, optimum = setting.problem, setting.optimum
    steps = len(setting.traffic.wire)
    sent = bytes_text(setting.traffic.sent(steps))
    per = "step" if steps == 1 else f"{steps} steps"
    return (
        f"{problem.name}: {problem.examples} examples, {problem.dimension} features, "
        f"f* = {optimum.value:.10g}\n{setting.method.name}, {setting.workers} "
        f"simulated workers; each would send {sent} per {per}"
    )

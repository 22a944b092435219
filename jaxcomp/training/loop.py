"""The run: from a config and a folder to a trained model, through any interruption."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from jaxcomp.parallel.workers import throttle
from jaxcomp.runs.open_run import Frame, Interrupted, keep_programs, open_run
from jaxcomp.training import checkpoints, console, diagnostics, evaluation, feed, tables
from jaxcomp.training import running_metrics as metrics
from jaxcomp.training.plan import RunPlan, make_plan
from jaxcomp.training.programs import StepProgram, make_programs, make_switch
from jaxcomp.training.state import TrainState


def train_and_evaluate(config: Any, workdir: str | os.PathLike[str]) -> console.Result:
    """Train as a config says, from where the folder's run stands.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workdir: run folder. Empty or absent: a new run. With a run of the same config:
        goes on from its newest whole checkpoint.

    Returns:
      Final state and figures.

    Raises:
      UserError: a name or value in the config; the message lists the valid ones.
      RunError: a folder that cannot be used; the message says what to do.
      NonFinite: a NaN or infinity, where config.nonfinite is "stop".
      Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    plan = make_plan(config)
    source, weights = plan.config.init_from, None
    if source and checkpoints.begins(Path(workdir)):
        weights = checkpoints.read_start(source, plan)
    written, facts = plan.as_written, console.facts_of(plan)
    with (
        open_run(workdir, written, facts, plan.total_steps) as frame,
        ExitStack() as stack,
    ):
        return _train(plan, frame, stack, weights)


def _train(
    plan: RunPlan, frame: Frame, stack: ExitStack, weights: checkpoints.Start | None
) -> console.Result:
    config, total, show = plan.config, plan.total_steps, frame.show
    show.say(console.headline(plan))
    show.say(keep_programs())

    # The state, as the newest whole checkpoint left it, or fresh.
    folder = frame.folder / "checkpoints"
    kept = checkpoints.open_checkpoints(
        folder, config.keep_last, plan.as_written, frame.secure
    )
    stack.callback(kept.close)
    state, progress, start = checkpoints.resume(plan, frame, kept, weights)
    switch = make_switch(plan, show.say)
    state = switch(state, start)

    # What looks at it.
    rows = stack.enter_context(tables.open_tables(plan, frame, start))
    score = evaluation.make_evaluator(plan, state)
    initial = diagnostics.initial_params(plan, state, start, frame)
    end_of_epoch = evaluation.make_end_of_epoch(
        plan, frame, rows, state, score, initial
    )
    programs = make_programs(plan, show.say)
    program, _ = programs(min(start, total - 1), state)
    batches = feed.run_feed(plan, start)
    check_replicas = diagnostics.make_replica_check(plan.workers, state)

    window = metrics.open_window()
    for number in range(start, total):
        done, due, is_best = number + 1, plan.triggers(number + 1), False
        program, lost = programs(number, state)
        window = window._replace(began=window.began + lost)
        state, window = take_step(program, state, window, batches)
        progress = progress.with_bytes(program.traffic)
        # Several processes must agree on a signal, which costs a message, so they ask
        # only where they look at the figures anyway.
        signum = frame.caught() if due.looks or jax.process_count() == 1 else None
        looks = due.looks or signum
        if looks:
            taken, timing = metrics.read_window(window)
            progress = tables.log_steps(
                plan, frame, rows, done, taken, timing, progress
            )
        if due.ends_epoch:
            check_replicas(state, done)
            state, progress, is_best = end_of_epoch(
                done, due, state, progress, program.traffic
            )
        if due.saves or is_best or signum:
            kept.begin(state, checkpoints.plain(progress), done, due.keeps, is_best)
        if signum and done < total:
            kept.finish()
            message = f"stopped at step {done} of {total}; everything is saved"
            raise Interrupted(signum, message)
        state = switch(state, done)
        if looks:
            window = metrics.open_window()

    kept.finish()
    if config.breakdown:
        diagnostics.time_parts(plan, state, frame)
    metrics.check_some_applied(progress.skipped + progress.overflowed, total)
    scores = progress.scores or score(evaluation.make_viewer(plan, state)(state).shown)
    return console.result_of(plan, frame, state, progress, scores, program.traffic)


def take_step(
    program: StepProgram,
    state: TrainState,
    window: metrics.LogWindow,
    batches: Iterator[Any],
) -> tuple[TrainState, metrics.LogWindow]:
    """Give the devices one step; only a CPU is waited for.

    Args:
      program: of the step.
      state: before it.
      window: before it.
      batches: the next one is that of the step, on the devices.
    """
    began = time.perf_counter()
    batch = next(batches)
    loaded = time.perf_counter()
    state, figures = program.step(state, *batch)
    issued = time.perf_counter()
    throttle((state, figures))
    window.taken.append(figures)
    return state, window._replace(
        data=window.data + loaded - began, issue=window.issue + issued - loaded
    )

"""The run: from a config and a folder to a trained model, through any interruption."""

import functools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from jaxcomp import loggers, parallel
from jaxcomp.gossip.picture import graph_facts
from jaxcomp.processes import on_all_processes
from jaxcomp.progress_file import mark_progress
from jaxcomp.runs.folder import note_fact
from jaxcomp.runs.frame import Frame, framed
from jaxcomp.runs.interrupt import Interrupted
from jaxcomp.runs.programs import keep_programs
from jaxcomp.tasks import Batch, Task
from jaxcomp.training.account import account, status
from jaxcomp.training.breakdown import time_parts
from jaxcomp.training.build import (
    Setup,
    build,
    gather_workers,
    settled,
)
from jaxcomp.training.changeable import changeable_keys
from jaxcomp.training.checkpoint import Checkpoints, open_checkpoints
from jaxcomp.training.console import Result, headline
from jaxcomp.training.distance import initial_params
from jaxcomp.training.elastic import make_resize, note_change
from jaxcomp.training.end_of_epoch import make_end_of_epoch
from jaxcomp.training.evaluation import make_evaluator, make_viewer
from jaxcomp.training.feed import train_feed
from jaxcomp.training.loading import loaded
from jaxcomp.training.meters import check_some_applied, of_all_workers
from jaxcomp.training.nodes import node_count
from jaxcomp.training.phases import batches_from
from jaxcomp.training.position import plain, resume
from jaxcomp.training.profiling import profiler
from jaxcomp.training.recorder import make_recorder
from jaxcomp.training.replicas import make_replica_check
from jaxcomp.training.start import Start, begins, read_start
from jaxcomp.training.state import TrainState
from jaxcomp.training.stretch import (
    begin,
    compiled_by_all,
    compiled_for,
    end,
    take_step,
)
from jaxcomp.training.switching import make_switch, saved_like
from jaxcomp.training.tables import open_tables
from jaxcomp.training.traffic import leaver, programs

__all__ = ["train_and_evaluate"]


def train_and_evaluate(config: Any, workdir: str | os.PathLike[str]) -> Result:
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
    workers = gather_workers(config)
    config = settled(config, workers)
    same = {k: v for k, v in config.items() if k != "data_dir"}
    parallel.check_same({"config": json.dumps(same, indent=1, sort_keys=True)})
    setup = on_all_processes(lambda: build(config, workers))
    facts = {
        "method": setup.method.name,
        "model": setup.task.model,
        "data": setup.task.data,
        "measure": setup.task.measure.name,
        "leaver": leaver(setup),
        "simulated": setup.method.simulated or setup.workers.mapper == "vmap",
        **graph_facts(config.topology, node_count(config)),
    }
    begun_with = None
    if config.init_from and begins(Path(workdir)):
        begun_with = read_start(config.init_from, setup)
    plainly = json.loads(config.to_json())
    changeable = changeable_keys(config)
    with (
        framed(workdir, plainly, facts, setup.total_steps, changeable) as frame,
        ExitStack() as stack,
    ):
        checkpoints = open_checkpoints(
            frame.folder / "checkpoints",
            *(config.keep_last, plainly, changeable, frame.secure),
        )
        stack.callback(checkpoints.close)
        return _run(config, setup, frame, checkpoints, stack, begun_with)


def _run(
    config: Any,
    setup: Setup,
    frame: Frame,
    checkpoints: Checkpoints,
    stack: ExitStack,
    begun_with: Start | None,
) -> Result:
    calendar, total, show = setup.calendar, setup.total_steps, frame.show
    epochs = calendar.epoch_at(total - 1)
    show.say(headline(config, setup))
    show.say(keep_programs())

    # State: fresh, or as the newest whole checkpoint left it.
    workers = setup.workers

    def fresh() -> TrainState:
        if begun_with is None:
            return parallel.spread(setup.fresh(), workers)
        show.say(f"weights of {begun_with.checkpoint}")
        if frame.writes:
            facts = {"checkpoint": str(begun_with.checkpoint), "step": begun_with.step}
            note_fact(frame.folder, "init_from", facts)
        return parallel.spread(setup.fresh(start=begun_with.variables), workers)

    state, position, start = resume(
        checkpoints,
        fresh,
        saved_like(setup),
        total,
        make_resize(setup, allowed=config.elastic),
    )
    parallel.check_same({"the step of the newest checkpoint": str(start)})
    if start:
        show.say(f"going on from step {start} of {total} in {frame.folder}")
    before, now = position.workers, workers.size
    if before not in (0, now):
        show.say(f"from here on there are {now} workers; there were {before}")
        if frame.writes:
            note_change(frame.folder, start, before, now)
    position = position._replace(workers=now)
    switch = make_switch(setup, show.say)
    state = switch(state, start)
    plainly = json.loads(config.to_json())
    tables = stack.enter_context(open_tables(frame, start, setup, plainly))

    measure = setup.task.measure
    score = make_evaluator(setup, state)
    initial = initial_params(config, setup, state, start, frame)
    end_of_epoch = make_end_of_epoch(setup, state, score, tables, frame, initial)
    compiled = programs(setup, show.say)
    traffic, metrics = compiled_by_all(compiled, min(start, total - 1), state)[1:]
    longest = max(phase.horizon.steps_per_epoch for phase in calendar.phases)
    most = min(config.log_every, longest)  # steps between looks
    recorder = make_recorder(setup.workers, metrics, most)

    def batches(task: Task, begin: int) -> Iterator[Batch]:
        feed = functools.partial(train_feed, local=setup.workers.local, start=begin)
        return loaded(feed, task, setup.workers)

    feed = batches_from(start, setup.regimes, setup.tasks, batches)

    check_replicas = make_replica_check(setup.workers, state)
    traces = frame.folder / loggers.FOLDER
    window, writes = setup.profiled, frame.writes
    traced = stack.enter_context(profiler(window, traces, show.say, writes=writes))
    stretch = begin(recorder.start())
    for number in range(start, total):
        done, due, is_best = number + 1, setup.due_at(number + 1), False
        program, stretch = compiled_for(compiled, number, state, stretch)
        traced(done, state)
        state, stretch = take_step(program, state, stretch, feed, recorder)
        traffic = program.traffic
        position = position.with_bytes(traffic)
        # Several processes must agree on a signal, which costs a message, so they ask
        # only where they look at the figures anyway.
        signum = frame.caught() if due.looks or jax.process_count() == 1 else None
        looks = due.looks or signum
        if looks:
            taken, timing = end(stretch, recorder)
            first = done - len(taken)
            position = on_all_processes(
                functools.partial(
                    *(account, first, taken, of_all_workers(taken), timing),
                    *(position, setup, config, tables, frame),
                )
            )
            speed = calendar.batch_at(number) / timing.total
            show.step(done, status(position, due.epoch, epochs, speed, measure))
            mark_progress()
        if due.ends_epoch:
            check_replicas(state, done)
            state, position, is_best = end_of_epoch(done, due, state, position, traffic)
        if due.saves or is_best or signum:
            checkpoints.begin(state, plain(position), done, due.keeps, is_best)
        if signum and done < total:
            checkpoints.finish()
            message = f"stopped at step {done} of {total}; everything is saved"
            raise Interrupted(signum, message)
        state = switch(state, done)
        if looks:
            stretch = begin(stretch.rows)

    checkpoints.finish()
    if config.breakdown:
        time_parts(config, setup, state, frame)
    check_some_applied(position.skipped + position.overflowed, total)
    scores = position.scores or score(make_viewer(setup, state)(state).shown)
    last = measure.of(*scores[:2])
    return Result(
        state=state,
        steps=total,
        skipped=position.skipped,
        overflowed=position.overflowed,
        test_loss=scores.loss,
        test_accuracy=scores.accuracy,
        measure=measure,
        test=last,
        best=measure.better(last, position.best),
        own=position.own,
        ema=position.ema and measure.of(*position.ema[:2]),
        traffic=traffic._replace(
            wire=position.sent / max(1, total),
            left=position.left / max(1, total),
            exact=position.exact / max(1, total),
        ),
        seconds=position.seconds,
        folder=frame.folder,
    )

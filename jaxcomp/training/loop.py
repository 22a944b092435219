"""The run: from a config and a folder to a trained model, through any interruption."""

import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.core.output import mark_progress
from jaxcomp.core.types import Array, Tree
from jaxcomp.mixers.gossip.topology import graph_facts
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.runs import loggers
from jaxcomp.runs.folder import note_fact
from jaxcomp.runs.open_run import Frame, Interrupted, keep_programs, open_run
from jaxcomp.training.checkpoints import (
    Checkpoints,
    Start,
    begins,
    make_resize,
    note_change,
    open_checkpoints,
    read_start,
)
from jaxcomp.training.console import Result, headline
from jaxcomp.training.diagnostics import initial_params, make_replica_check, time_parts
from jaxcomp.training.end_of_epoch import account, make_end_of_epoch, status
from jaxcomp.training.evaluation import make_evaluator, make_viewer
from jaxcomp.training.feed import loaded, train_feed
from jaxcomp.training.optimizers import node_count
from jaxcomp.training.profiling import profiler
from jaxcomp.training.progress import plain, resume
from jaxcomp.training.running_metrics import (
    Timing,
    check_some_applied,
    mean_timing,
    of_all_workers,
)
from jaxcomp.training.segments import batches_from
from jaxcomp.training.setup import Setup, build, gather_workers, settled
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.switching import make_switch, saved_like
from jaxcomp.training.tables import open_tables
from jaxcomp.training.tasks import Batch, Task
from jaxcomp.training.traffic import Programs, StepProgram, leaver, programs


class Recorder(NamedTuple):
    """Keeps the figures of the last steps on the devices."""

    start: Callable[[], Array]  # rows without figures, [workers, steps, words]
    # (rows, figures of a step) -> rows in which that step is the last one
    record: Callable[[Array, StepMetrics], Array]
    # (rows, count) -> the last so many steps of this process's workers, NumPy arrays
    read: Callable[[Array, int], list[StepMetrics]]


def make_recorder(
    workers: parallel.Workers, metrics: StepMetrics, steps: int
) -> Recorder:
    """Make a recorder of the figures of steps; compiles its one program.

    Args:
      workers: of the run.
      metrics: shapes and dtypes of a step's figures, with the axis of workers.
      steps: the most that lie between two looks.
    """
    local = workers.local.stop - workers.local.start
    leaves, structure = jax.tree.flatten(metrics)
    own = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    lengths = [_word_count(leaf) for leaf in own]

    def start() -> Array:
        rows = np.zeros((local, steps, sum(lengths)), np.uint32)
        return parallel.place(rows, workers, 0)

    def append(rows: Array, metrics: StepMetrics) -> Array:
        row = jnp.concatenate([_words(leaf) for leaf in jax.tree.leaves(metrics)])
        return jnp.concatenate([rows[1:], row[None]])

    mapped = parallel.map_step(
        append, workers, in_axes=(0, 0), out_axes=0, donate_argnums=(0,)
    )
    empty = [np.zeros((local, *leaf.shape), leaf.dtype) for leaf in own]
    placed = parallel.place(jax.tree.unflatten(structure, empty), workers, 0)
    compiled = mapped.lower(start(), placed).compile()

    def read(rows: Array, count: int) -> list[StepMetrics]:
        words = parallel.to_host(rows)[:, steps - count :]
        parts = np.split(words, np.cumsum(lengths)[:-1], axis=-1)
        values = [_values(part, leaf) for part, leaf in zip(parts, own, strict=True)]
        return [
            jax.tree.unflatten(structure, [value[:, step] for value in values])
            for step in range(count)
        ]

    return Recorder(start, compiled, read)


def _words(x: Array) -> Array:
    """The bits of an array as uint32, [words]; a small element takes a whole word."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32).reshape(-1)
    bits = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, bits).astype(jnp.uint32).reshape(-1)


def _word_count(spec: Any) -> int:
    return math.prod(spec.shape) * max(1, np.dtype(spec.dtype).itemsize // 4)


def _values(words: np.ndarray, spec: Any) -> Tree:
    """The inverse of `_words`, for the last axis of [workers, steps, words]."""
    dtype = np.dtype(spec.dtype)
    narrow = {1: np.uint8, 2: np.uint16}.get(dtype.itemsize, np.uint32)
    bits = np.ascontiguousarray(words.astype(narrow))
    return bits.view(dtype).reshape(*words.shape[:2], *spec.shape)


class Stretch(NamedTuple):
    """The steps since the last look."""

    rows: Array  # their figures, on the devices
    steps: int  # their number
    began: float  # when the last look ended
    data: float  # seconds for loading
    issue: float  # seconds for handing steps to the devices


def begin(rows: Array) -> Stretch:
    """A stretch without steps; `rows` are those of a recorder."""
    return Stretch(rows, 0, time.perf_counter(), 0.0, 0.0)


def compiled_for(
    programs: Programs, number: int, state: TrainState, stretch: Stretch
) -> tuple[StepProgram, Stretch]:
    """The program of a step; the time of compiling it is not in the stretch."""
    if programs.is_compiled(number):
        return programs.at(number, state), stretch
    jax.block_until_ready(state)  # the steps before it are still in the stretch
    paused = time.perf_counter()
    program = compiled_by_all(programs, number, state)
    lost = time.perf_counter() - paused
    return program, stretch._replace(began=stretch.began + lost)


def compiled_by_all(programs: Programs, number: int, state: TrainState) -> StepProgram:
    """The program of a step, once all processes have it.

    The first message of a program would otherwise wait for the slowest compiler, and
    Gloo does so for 30 seconds.
    """
    return on_all_processes(lambda: programs.at(number, state))


def take_step(
    program: StepProgram,
    state: TrainState,
    stretch: Stretch,
    feed: Iterator[Any],
    recorder: Recorder,
) -> tuple[TrainState, Stretch]:
    """Give the devices one step; only a CPU is waited for.

    Args:
      program: of the step.
      state: before it.
      stretch: before it.
      feed: gives its batch, on the devices.
      recorder: keeps its figures.
    """
    began = time.perf_counter()
    batch = next(feed)
    loaded = time.perf_counter()
    state, metrics = program.step(state, *batch)
    issued = time.perf_counter()
    rows = recorder.record(stretch.rows, metrics)
    parallel.throttle((state, rows))
    return state, Stretch(
        rows=rows,
        steps=stretch.steps + 1,
        began=stretch.began,
        data=stretch.data + loaded - began,
        issue=stretch.issue + issued - loaded,
    )


def end(stretch: Stretch, recorder: Recorder) -> tuple[list[StepMetrics], Timing]:
    """The figures of a stretch, and the mean timing of its steps; waits for them."""
    taken = recorder.read(stretch.rows, stretch.steps)
    wall = time.perf_counter() - stretch.began
    return taken, mean_timing(stretch.data, stretch.issue, wall, stretch.steps)


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
    with (
        open_run(workdir, plainly, facts, setup.total_steps) as frame,
        ExitStack() as stack,
    ):
        checkpoints = open_checkpoints(
            frame.folder / "checkpoints",
            *(config.keep_last, plainly, frame.secure),
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

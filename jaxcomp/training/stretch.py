"""The steps between two looks: what they cost, and their figures at the end.

On accelerators nothing waits for the devices within a stretch. Its wall time, from the
end of one look until the figures of the next are there, is the time of its steps.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel
from jaxcomp.base import Array
from jaxcomp.processes import on_all_processes
from jaxcomp.training.meters import Timing, mean_timing
from jaxcomp.training.recorder import Recorder
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.traffic import Program, Programs

__all__ = [
    "Stretch",
    "begin",
    "compiled_by_all",
    "compiled_for",
    "end",
    "take_step",
]


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
) -> tuple[Program, Stretch]:
    """The program of a step; the time of compiling it is not in the stretch."""
    if programs.is_compiled(number):
        return programs.at(number, state), stretch
    jax.block_until_ready(state)  # the steps before it are still in the stretch
    paused = time.perf_counter()
    program = compiled_by_all(programs, number, state)
    lost = time.perf_counter() - paused
    return program, stretch._replace(began=stretch.began + lost)


def compiled_by_all(programs: Programs, number: int, state: TrainState) -> Program:
    """The program of a step, once all processes have it.

    The first message of a program would otherwise wait for the slowest compiler, and
    Gloo does so for 30 seconds.
    """
    return on_all_processes(lambda: programs.at(number, state))


def take_step(
    program: Program,
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

"""Where the time of a step goes: its parts, compiled apart and timed.

    data              batches are taken and put on the devices
    forward_backward  the gradient of a worker's share
    compress          all that the first message needs
    communicate       the exchange, less the same one whose messages stay where they are
    decode            the rest of that one: decoding, the mean, what a memory keeps
    update            all other links of the optax chain, and the new parameters

The parts do not overlap each other here. In the step itself they may, and the compiler
joins them, so their sum is near the time of a step and not equal to it.
"""

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxcomp import parallel
from jaxcomp.base import Tree
from jaxcomp.files import write_atomically
from jaxcomp.runs.frame import Frame
from jaxcomp.runs.metrics import PARTS
from jaxcomp.runs.units import seconds_text
from jaxcomp.training.build import Setup
from jaxcomp.training.feed import train_feed
from jaxcomp.training.loading import loaded
from jaxcomp.training.probing import gradient_of, place_of_talk, through_link
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import TrainState, own
from jaxcomp.wire import first_message, without_messages

__all__ = ["Part", "breakdown", "time_parts", "write_breakdown"]

TIMES = 10  # each program runs, after once to warm up; all processes run it as often
_HOW = {
    "data": "a batch is taken and put on the devices",
    "forward_backward": "the gradient, compiled alone",
    "compress": "what the first message needs, compiled alone",
    "communicate": "the exchange, less the exchange without messages",
    "decode": "the exchange without messages, less compress",
    "update": "the other links of the chain, compiled alone",
}
_LOOKED_AT = 200  # last steps, in which one that sends is looked for


class Part(NamedTuple):
    """A part of a step."""

    name: str
    seconds: float
    how: str  # it was measured


def time_parts(config: Any, setup: Setup, state: TrainState, frame: Frame) -> None:
    """Time the parts of a step on all processes, and write them into the run folder.

    Args:
      config: of the run.
      setup: of the run.
      state: spread over the workers.
      frame: of the run.
    """
    frame.show.say("timing the parts of a step, each compiled alone")
    parts = breakdown(config, setup, state)
    if frame.writes:
        write_breakdown(parts, frame.folder)
    shown = (f"{part.name} {seconds_text(part.seconds)}" for part in parts)
    frame.show.say(", ".join(shown))


def write_breakdown(parts: list[Part], folder: Path) -> None:
    """Write breakdown.csv, one row for each part."""
    rows = [f'{part.name},{1000 * part.seconds:.6g},"{part.how}"\n' for part in parts]
    write_atomically(folder / "breakdown.csv", "part,ms,how\n" + "".join(rows))


def breakdown(config: Any, setup: Setup, state: TrainState) -> list[Part]:
    """Time the parts of a step of a run; the state stays as it is.

    Args:
      config: of the run.
      setup: of the run.
      state: spread over the workers.
    """
    workers, axes = setup.workers, parallel.axes(state)
    task = setup.tasks[setup.regimes.at(setup.total_steps - 1)]
    batches = functools.partial(train_feed, local=workers.local, start=0)
    feed = loaded(batches, task, workers)

    def load() -> Any:
        return next(feed)

    def mapped(function: Callable[..., Tree], *given: Any) -> Callable[[], Tree]:
        """The function of one worker, of the state and stacks, for all workers."""
        in_axes = (axes, *(0 for _ in given))
        run = parallel.map_step(function, workers, in_axes=in_axes, out_axes=0)
        return lambda: run(state, *given)

    micro = [array[:, : array.shape[1] // config.accumulate] for array in load()]
    gradient = mapped(gradient_of(task, setup.loss_scale), *micro)
    grads = gradient()
    talk, others = _split(setup.links(_stage_that_sends(setup)), state)
    axis = workers.device_axis
    whole = _median(mapped(talk, grads))
    quiet = _median(mapped(without_messages(talk, axis), grads))
    first = min(quiet, _median(mapped(first_message(talk, axis), grads)))
    seconds = {
        "data": _median(load),
        "forward_backward": _median(gradient) * config.accumulate,
        "compress": first,
        "communicate": max(0.0, whole - quiet),
        "decode": quiet - first,
        "update": _median(mapped(others, grads)),
    }
    return [Part(name, seconds[name], _HOW[name]) for name in PARTS]


def _split(
    links: list[optax.GradientTransformation], state: TrainState
) -> tuple[Callable[..., Tree], Callable[..., Tree]]:
    """The link that talks, and the step of all others, as functions of one worker."""
    place = place_of_talk(state)

    def talk(state: TrainState, grads: Tree) -> Tree:
        return through_link(links, place, grads, state)

    def others(state: TrainState, grads: Tree) -> Tree:
        states = []
        for i in range(len(links)):
            if i != place:
                grads, after = through_link(links, i, grads, state)
                states.append(after)
        return optax.apply_updates(own(state.params), grads), states

    return talk, others


def _stage_that_sends(setup: Setup) -> Stage:
    """Of the last steps, one that sends, and compressed if there is such a one."""
    last = range(max(0, setup.total_steps - _LOOKED_AT), setup.total_steps)
    regime = setup.regimes.at(setup.total_steps - 1)
    stages = [setup.stages.at(step)._replace(regime=regime) for step in last]
    return max(stages, key=lambda stage: (not stage.dense, stage.phase))


def _median(run: Callable[[], Any]) -> float:
    """Seconds of a call, the median of several after the first."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)

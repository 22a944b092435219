"""The compiled step, and the bytes that it sends, read from the program itself."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel, wire
from jaxcomp.base import Mixer
from jaxcomp.runs.units import bytes_text
from jaxcomp.training.build import Setup
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics

__all__ = ["Program", "Programs", "Traffic", "programs", "traced_traffic"]


class Traffic(NamedTuple):
    """Bytes that a worker, or a device of several, hands to the network in one step."""

    wire: float
    dense: int  # of the uncompressed gradient
    simulated: bool  # vmap: nothing moves; what the traced step would send
    stand_in: bool = False  # the dense bytes of a method that is meant to send less
    unread: str = ""  # why the program could not be read; the bytes are of the trace
    sender: str = "worker"  # or "device", where workers share one
    leaving: int | None = None  # of them to other nodes, where a node has many devices

    @property
    def ratio(self) -> float:
        return self.dense / self.wire if self.wire else float("inf")

    def __str__(self) -> str:
        kind = "would send" if self.simulated else "sends"
        if not self.wire:
            return f"each {self.sender} {kind} nothing in this step"
        leaving = bytes_text(self.leaving or 0)
        notes = [
            (self.leaving is not None, f", {leaving} of them to other nodes"),
            (self.stand_in, ": SIMULATED, the method's own bytes are in steps.csv"),
            (self.unread, ": TRACED, the compiled program could not be read"),
        ]
        return (
            f"each {self.sender} {kind} {bytes_text(self.wire)} a step instead of "
            f"{bytes_text(self.dense)} ({self.ratio:.3g}x less)"
            f"{''.join(note for holds, note in notes if holds)}"
        )


class Program(NamedTuple):
    """The compiled step of a stage."""

    step: Callable[..., tuple[TrainState, StepMetrics]]
    traffic: Traffic
    metrics: StepMetrics  # shapes and dtypes


class Programs(NamedTuple):
    """The compiled steps of a run, by the numbers of its steps."""

    at: Callable[[int, TrainState], Program]  # compiles it if that was not done yet
    is_compiled: Callable[[int], bool]


def programs(setup: Setup, say: Callable[[str], None]) -> Programs:
    """The compiled step for a step's stage, and its bytes; compiled when first due.

    Args:
      setup: of the run.
      say: where compiling is announced.
    """
    compiled: dict[Stage, Program] = {}

    def at(number: int, state: TrainState) -> Program:
        stage = setup.stages.at(number)
        if stage not in compiled:
            say(f"step {number + 1}: compiling for {stage}")
            began = time.perf_counter()
            compiled[stage] = _compile_step(setup, state, stage)
            took = time.perf_counter() - began
            traffic = compiled[stage].traffic
            say(f"compiled in {took:.1f} s; {traffic}")
            if traffic.unread:
                say(f"WARNING: bytes are those of the traced step: {traffic.unread}")
        return compiled[stage]

    return Programs(at, lambda number: setup.stages.at(number) in compiled)


def _compile_step(setup: Setup, state: TrainState, stage: Stage) -> Program:
    """The mapped step of a stage, compiled, and its bytes read from the program."""
    workers, own_step = setup.workers, setup.step(stage)
    axes = parallel.axes(state)
    over = _over(setup, axes)
    mapped = parallel.map_step(own_step, workers, **over, donate_argnums=(0,))
    local = workers.local.stop - workers.local.start
    example = setup.example(stage.regime)
    stacked = jax.tree.map(lambda x: x[None].repeat(local, axis=0), example)
    lowered = mapped.lower(state, *parallel.place(stacked, workers, 0))
    compiled = lowered.compile(setup.options)
    trace = functools.partial(_traced, setup, stage)
    simulated = workers.mapper == "vmap"
    found, unread = (trace(), "") if simulated else _read(compiled, trace)
    return Program(compiled, _traffic(setup, found, unread), lowered.out_info[1])


def traced_traffic(setup: Setup, stage: Stage) -> Traffic:
    """The bytes of the step of a stage, which is traced and not compiled."""
    return _traffic(setup, _traced(setup, stage))


def _traffic(setup: Setup, found: list[wire.Collective], unread: str = "") -> Traffic:
    return Traffic(
        wire=sum(wire.collective_bytes(found).values()),
        dense=wire.dense_bytes(jax.eval_shape(setup.fresh).params),
        simulated=setup.workers.mapper == "vmap",
        stand_in=setup.method.simulated,
        unread=unread,
        sender="device" if setup.workers.per_device > 1 else "worker",
        leaving=_leaving(found, setup),
    )


def _over(setup: Setup, axes: Any) -> dict[str, Any]:
    """The axes of workers in what a step is given and in what it returns."""
    return {
        "in_axes": (axes, *(0 for _ in setup.task.train)),
        "out_axes": (axes, 0),
    }


def _traced(setup: Setup, stage: Stage) -> list[wire.Collective]:
    """The collectives of one device's step in a stage, as traced."""
    workers = setup.workers
    fresh = jax.eval_shape(lambda: setup.fresh(stage.regime))
    over = _over(setup, parallel.axes(fresh))
    return wire.traced_collectives(
        parallel.on_device(setup.step(stage), workers, **over),
        *parallel.specs_of_device(
            (fresh, *setup.example(stage.regime)), workers, over["in_axes"]
        ),
        axis=workers.device_axis,
        workers=workers.devices,
    )


def _leaving(found: list[wire.Collective], setup: Setup) -> int | None:
    """The bytes of messages between nodes; None where each worker is a node."""
    method, size = setup.method, setup.workers.size
    if not isinstance(method, Mixer) or method.workers in (None, size):
        return None
    devices = size // method.workers
    between = [
        collective
        for collective in found
        if any(len({i // devices for i in group}) > 1 for group in collective.groups)
    ]
    return sum(wire.collective_bytes(between).values())


def _read(
    compiled: Any, trace: Callable[[], list[wire.Collective]]
) -> tuple[list[wire.Collective], str]:
    """The collectives of a program, or of its trace and why it could not be read."""
    try:
        return wire.collectives(compiled), ""
    except wire.WireError as error:
        return trace(), str(error)

"""The compiled step, and the bytes that it sends, read from the program itself."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel, wire
from jaxcomp.core.types import Mixer
from jaxcomp.core.units import bytes_text, times_fewer
from jaxcomp.training.calendar import Stage
from jaxcomp.training.setup import Setup
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics


class Traffic(NamedTuple):
    """Bytes of one step, or the mean of several."""

    wire: float  # the message: what a worker, or device of several, hands over
    left: float  # leave the worker, device or host that sends the most, as in rings
    exact: float  # would leave it with `exact` in as many workers
    dense: int  # of the uncompressed gradient
    simulated: bool  # vmap: nothing moves; what the traced step would send
    stand_in: bool = False  # the dense bytes of a method that is meant to send less
    unread: str = ""  # why the program could not be read; the bytes are of the trace
    sender: str = "worker"  # or "device", where workers share one
    leaver: str = "worker"  # which `left` and `exact` leave: or "host of 2 workers"

    @property
    def fewer(self) -> float:
        """The ratio: how many times fewer bytes leave than with `exact`."""
        return times_fewer(self.exact, self.left)

    def of(self, steps: int) -> tuple[float, float, float]:
        """The message, what left and what would have left, of so many steps."""
        return steps * self.wire, steps * self.left, steps * self.exact

    @property
    def whom(self) -> str:
        """What the bytes leave, after a word of who sends the messages."""
        return "it" if self.leaver == self.sender else f"each {self.leaver}"

    def __str__(self) -> str:
        would = "would " if self.simulated else ""
        sends = "would send" if self.simulated else "sends"
        if not self.wire:
            return f"each {self.sender} {sends} nothing in this step"
        notes = [
            (self.stand_in, ": SIMULATED, the method's own bytes are in steps.csv"),
            (self.unread, ": TRACED, the compiled program could not be read"),
        ]
        left, exact = bytes_text(self.left), bytes_text(self.exact)
        return (
            f"each {self.sender} {sends} messages of {bytes_text(self.wire)} a step; "
            f"{left} {would}leave {self.whom}, and {exact} with exact"
            f"{''.join(note for holds, note in notes if holds)}"
        )


class StepProgram(NamedTuple):
    """The compiled step of a stage."""

    step: Callable[..., tuple[TrainState, StepMetrics]]
    traffic: Traffic
    metrics: StepMetrics  # shapes and dtypes


class Programs(NamedTuple):
    """The compiled steps of a run, by the numbers of its steps."""

    at: Callable[[int, TrainState], StepProgram]  # compiles it if that was not done yet
    is_compiled: Callable[[int], bool]


def programs(setup: Setup, say: Callable[[str], None]) -> Programs:
    """The compiled step for a step's stage, and its bytes; compiled when first due.

    Args:
      setup: of the run.
      say: where compiling is announced.
    """
    compiled: dict[Stage, StepProgram] = {}

    def at(number: int, state: TrainState) -> StepProgram:
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


def _compile_step(setup: Setup, state: TrainState, stage: Stage) -> StepProgram:
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
    return StepProgram(compiled, traffic_of(setup, found, unread), lowered.out_info[1])


def traced_traffic(setup: Setup, stage: Stage) -> Traffic:
    """The bytes of the step of a stage, which is traced and not compiled."""
    return traffic_of(setup, _traced(setup, stage))


def run_traffic(setup: Setup) -> tuple[Traffic, dict[Stage, Traffic]]:
    """The mean step of the whole run, and a step of each of its stages, as traced."""
    steps = Counter(map(setup.stages.at, range(setup.total_steps)))
    found = {stage: traced_traffic(setup, stage) for stage in steps}

    def mean(name: str) -> float:
        whole = sum(getattr(found[stage], name) * n for stage, n in steps.items())
        return whole / setup.total_steps

    sums = {name: mean(name) for name in ("wire", "left", "exact")}
    return next(iter(found.values()))._replace(**sums), found


def leaver(setup: Setup) -> str:
    """Whose bytes are counted where they leave: a worker's, a device's or a host's."""
    several = _per_host(setup)
    sender = _sender(setup)
    return f"host of {several} {sender}s" if several > 1 else sender


def _sender(setup: Setup) -> str:
    return "device" if setup.workers.per_device > 1 else "worker"


def traffic_of(
    setup: Setup, found: Sequence[wire.Collective], unread: str = ""
) -> Traffic:
    """The bytes of a step whose collectives were found; `unread` as in `Traffic`."""
    params = jax.eval_shape(setup.fresh).params
    return Traffic(
        wire=sum(wire.collective_bytes(found).values()),
        left=wire.link_bytes(found, _per_host(setup)),
        exact=wire.exact_bytes(params, setup.workers.devices),
        dense=wire.dense_bytes(params),
        simulated=setup.workers.mapper == "vmap",
        stand_in=setup.method.simulated,
        unread=unread,
        sender=_sender(setup),
        leaver=leaver(setup),
    )


def _per_host(setup: Setup) -> int:
    """Devices of a host: a process of several, a node of gossip, or as methods say.

    Where all workers share the one host, each counts as if it had its own.
    """
    workers, method = setup.workers, setup.method
    if workers.hosts > 1:
        return workers.devices // workers.hosts
    nodes = method.workers if isinstance(method, Mixer) else None
    together = workers.size // nodes if nodes else method.per_host
    return max(1, together // workers.per_device) if together < workers.size else 1


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


def _read(
    compiled: Any, trace: Callable[[], list[wire.Collective]]
) -> tuple[list[wire.Collective], str]:
    """The collectives of a program, or of its trace and why it could not be read."""
    try:
        return wire.collectives(compiled), ""
    except wire.WireError as error:
        return trace(), str(error)

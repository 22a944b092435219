"""The compiled programs of a run, and the bytes of a step, read from its program."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel, wire
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import Mixer, Tree
from jaxcomp.core.units import bytes_text, times_fewer
from jaxcomp.exchanges.overlap import compiler_options
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.mapping import on_device
from jaxcomp.parallel.placing import specs_of
from jaxcomp.runs.keys import check_keys
from jaxcomp.training.plan import RunPlan, build, check_batches
from jaxcomp.training.stages import Stage
from jaxcomp.training.state import TrainState, carried, mark_like, unmark
from jaxcomp.training.step import StepMetrics
from jaxcomp.wire import targets


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


def make_programs(
    plan: RunPlan, say: Callable[[str], None]
) -> Callable[[int, TrainState], tuple[StepProgram, float]]:
    """Make a function from a step's number and a state to the compiled step.

    Args:
      plan: of the run.
      say: where compiling is announced.

    Returns:
      A function that also returns the seconds for which compiling has held it up.
    """
    compiled: dict[Stage, StepProgram] = {}

    def program_of(number: int, state: TrainState) -> tuple[StepProgram, float]:
        stage = plan.stages.at(number)
        if stage in compiled:
            return compiled[stage], 0.0
        if compiled:  # the steps before it are no part of its time
            jax.block_until_ready(state)
        say(f"step {number + 1}: compiling for {stage}")
        began = time.perf_counter()
        # The first message of a program would otherwise wait for the slowest
        # compiler, and Gloo does so for 30 seconds.
        program = on_all_processes(lambda: _compile_step(plan, state, stage))
        took, traffic = time.perf_counter() - began, program.traffic
        say(f"compiled in {took:.1f} s; {traffic}")
        if traffic.unread:
            say(f"WARNING: bytes are those of the traced step: {traffic.unread}")
        compiled[stage] = program
        return program, took

    return program_of


def _compile_step(plan: RunPlan, state: TrainState, stage: Stage) -> StepProgram:
    """The mapped step of a stage, compiled, and its bytes read from the program."""
    workers = plan.workers
    mapped, _ = _mapped(plan, stage, state, workers)
    local = workers.local.stop - workers.local.start
    example = plan.example(stage.segment)
    stacked = jax.tree.map(lambda x: x[None].repeat(local, axis=0), example)
    lowered = mapped.lower(state, *parallel.place(stacked, workers, 0))
    compiled = lowered.compile(_options(plan))
    unread = ""
    if workers.mapper == "vmap":
        found = _traced(plan, stage)
    else:
        try:
            found = wire.collectives(compiled)
        except wire.WireError as error:
            found, unread = _traced(plan, stage), str(error)
    return StepProgram(compiled, traffic_of(plan, found, unread))


def _axes(plan: RunPlan, state: TrainState) -> dict[str, Any]:
    """The axes of workers in what a step is given and in what it returns."""
    axes = parallel.axes(state)
    return {"in_axes": (axes, *(0 for _ in plan.task.train)), "out_axes": (axes, 0)}


def _mapped(
    plan: RunPlan, stage: Stage, state: TrainState, workers: parallel.Workers
) -> tuple[Any, dict[str, Any]]:
    """The step of all workers at a stage, and the axes of workers in it."""
    axes = _axes(plan, state)
    step = plan.step(stage)
    return parallel.map_step(step, workers, **axes, donate_argnums=(0,)), axes


def _options(plan: RunPlan) -> dict[str, Any]:
    """Of the compiler, for every step."""
    mesh = plan.workers.mesh  # None for simulated workers, which send nothing
    platform = "" if mesh is None else mesh.devices.flat[0].platform
    return compiler_options(platform, plan.cut.parts)


def make_switch(
    plan: RunPlan, say: Callable[[str], None]
) -> Callable[[TrainState, int], TrainState]:
    """Make a function that hands the state to the segment of the next step.

    Args:
      plan: of the run.
      say: where a segment that begins is announced.

    Returns:
      A function from a state and the number of the next step, from 0, to the state with
      which that step is taken.
    """
    run = plan.segments

    def switched(state: TrainState, number: int) -> TrainState:
        """The state of one worker, with the chain of another segment."""
        fresh: Any = plan.chain_of(number).init(unmark(state.params))
        opt_state = carried(unmark(state.opt_state), fresh)
        return state._replace(opt_state=mark_like(state.opt_state, opt_state))

    def switch(state: TrainState, step: int) -> TrainState:
        if step >= plan.total_steps or not run.begins(step):
            return state
        now = run.number(step)
        say(str(run.each[now]))
        before, wanted = (
            jax.eval_shape(lambda n=n: plan.fresh(n)) for n in (now - 1, now)
        )
        if _specs(before) == _specs(wanted):
            return state
        return parallel.map_step(
            lambda state: switched(state, now),
            plan.workers,
            in_axes=(parallel.axes(state),),
            out_axes=parallel.axes(wanted),
            donate_argnums=(0,),
        )(state)

    return switch


def _specs(tree: Tree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def traced_traffic(plan: RunPlan, stage: Stage) -> Traffic:
    """The bytes of the step of a stage, which is traced and not compiled."""
    return traffic_of(plan, _traced(plan, stage))


def run_traffic(plan: RunPlan) -> tuple[Traffic, dict[Stage, Traffic]]:
    """The mean step of the whole run, and a step of each of its stages, as traced."""
    steps = Counter(map(plan.stages.at, range(plan.total_steps)))
    found = {stage: traced_traffic(plan, stage) for stage in steps}

    def mean(name: str) -> float:
        whole = sum(getattr(found[stage], name) * n for stage, n in steps.items())
        return whole / plan.total_steps

    sums = {name: mean(name) for name in ("wire", "left", "exact")}
    return next(iter(found.values()))._replace(**sums), found


def leaver(plan: RunPlan) -> str:
    """Whose bytes are counted where they leave: a worker's, a device's or a host's."""
    several = _per_host(plan)
    sender = _sender(plan)
    return f"host of {several} {sender}s" if several > 1 else sender


def _sender(plan: RunPlan) -> str:
    return "device" if plan.workers.per_device > 1 else "worker"


def traffic_of(
    plan: RunPlan, found: Sequence[wire.Collective], unread: str = ""
) -> Traffic:
    """The bytes of a step whose collectives were found; `unread` as in `Traffic`."""
    params = plan.params
    return Traffic(
        wire=sum(wire.collective_bytes(found).values()),
        left=wire.link_bytes(found, _per_host(plan)),
        exact=wire.exact_bytes(params, plan.workers.devices),
        dense=wire.dense_bytes(params),
        simulated=plan.workers.mapper == "vmap",
        stand_in=plan.method.simulated,
        unread=unread,
        sender=_sender(plan),
        leaver=leaver(plan),
    )


def _per_host(plan: RunPlan) -> int:
    """Devices of a host: a process of several, a node of gossip, or as methods say.

    Where all workers share the one host, each counts as if it had its own.
    """
    workers, method = plan.workers, plan.method
    if workers.hosts > 1:
        return workers.devices // workers.hosts
    nodes = method.workers if isinstance(method, Mixer) else None
    together = workers.size // nodes if nodes else method.per_host
    return max(1, together // workers.per_device) if together < workers.size else 1


def _traced(plan: RunPlan, stage: Stage) -> list[wire.Collective]:
    """The collectives of one device's step in a stage, as traced."""
    workers = plan.workers
    fresh = jax.eval_shape(lambda: plan.fresh(stage.segment))
    over = _axes(plan, fresh)
    return wire.traced_collectives(
        on_device(plan.step(stage), workers, **over),
        *specs_of(
            (fresh, *plan.example(stage.segment)), over["in_axes"], workers.per_device
        ),
        axis=workers.device_axis,
        workers=workers.devices,
    )


class Inspection(NamedTuple):
    """A training step, compiled for a target, and what its program costs."""

    plan: RunPlan
    target: targets.Target
    step: int  # of the run, from 1
    stage: Stage
    program: targets.Program
    sent: Traffic  # of this step, as compiled
    run: Traffic  # the mean step of the whole run, as traced
    seconds: float  # of compiling


def inspect(
    config: Any, name: str, hosts: int = 1, devices: int = 8, step: int | None = None
) -> Inspection:
    """Compile the training step of a config for a target, and read the program.

    Every device is one worker, whatever `config.workers` and
    `config.workers_per_device` say.

    Args:
      config: ConfigDict with the keys of configs/default.py; its `workers` is set.
      name: of the accelerator, one of `targets.NAMES`.
      hosts: their number.
      devices: of each host.
      step: of the run, from 1, because steps may differ in what they send; the last by
        default.

    Raises:
      UserError: the target or a value of the config is wrong; the message says what is
        right.
      WireError: a collective of the program cannot be read.
    """
    check_keys(config)
    target = targets.make(name, hosts, devices, config.mapper)
    with config.unlocked():
        config.workers, config.workers_per_device = target.workers.size, 1
    check_batches(config, config.workers)
    plan = build(config, target.workers)
    total = plan.total_steps
    chosen = total if step is None else step
    if not 1 <= chosen <= total:
        raise UserError(f"the run has the steps 1 to {total}, and no step {step}")
    stage = plan.stages.at(chosen - 1)
    state = jax.eval_shape(lambda: plan.fresh(stage.segment))
    mapped, axes = _mapped(plan, stage, state, target.workers)
    given = targets.specs(state, target, axes["in_axes"][0])
    batch = targets.specs(plan.example(stage.segment), target)
    began = time.perf_counter()
    compiled = targets.compiled(mapped, target, given, *batch, **_options(plan))
    seconds = time.perf_counter() - began
    program = targets.read(compiled)
    return Inspection(
        plan,
        target,
        step=chosen,
        stage=stage,
        program=program,
        sent=traffic_of(plan, program.collectives),
        run=run_traffic(plan)[0],
        seconds=seconds,
    )

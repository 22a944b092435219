"""A training step as accelerators would run it that are not here: compiled and read."""

import time
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.runs.folder import check_keys
from jaxcomp.training.calendar import Stage
from jaxcomp.training.keys import check_batches, check_one_batch
from jaxcomp.training.setup import Setup, build
from jaxcomp.training.traffic import Traffic, run_traffic, traffic_of
from jaxcomp.wire import targets


class Inspection(NamedTuple):
    """A training step, compiled for a target, and what its program costs."""

    setup: Setup
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
    check_one_batch(config)
    target = targets.make(name, hosts, devices, config.mapper)
    with config.unlocked():
        config.workers, config.workers_per_device = target.workers.size, 1
    check_batches(config, config.workers)
    setup = build(config, target.workers)
    total = setup.total_steps
    chosen = total if step is None else step
    if not 1 <= chosen <= total:
        raise UserError(f"the run has the steps 1 to {total}, and no step {step}")
    stage = setup.stages.at(chosen - 1)
    began = time.perf_counter()
    compiled = compile_step(setup, stage, target)
    seconds = time.perf_counter() - began
    program = targets.read(compiled)
    return Inspection(
        setup,
        target,
        step=chosen,
        stage=stage,
        program=program,
        sent=traffic_of(setup, program.collectives),
        run=run_traffic(setup)[0],
        seconds=seconds,
    )


def compile_step(setup: Setup, stage: Stage, target: targets.Target) -> Any:
    """Compile the step of a stage; no array of the state is made.

    Args:
      setup: built for `target.workers`.
      stage: of the run.
      target: from `targets.make`.
    """
    state = jax.eval_shape(lambda: setup.fresh(stage.regime))
    axes = parallel.axes(state)
    batch = setup.example(stage.regime)
    mapped = parallel.map_step(
        setup.step(stage),
        target.workers,
        in_axes=(axes, *(0 for _ in batch)),
        out_axes=(axes, 0),
        donate_argnums=(0,),
    )
    given = targets.specs(state, target, axes), *targets.specs(batch, target)
    return targets.compiled(mapped, target, *given, **setup.options)

"""How long an exchange would compute on a GPU that is not here: a model.

    seconds = launches x time of one + bytes of memory / bandwidth + open loops x wait

The figures come from the program that XLA compiles for the GPU. Caches, kernels that
use part of the memory's bandwidth, and launches that hide behind kernels are not in it.
"""

from collections.abc import Sequence
from typing import Any

from jaxcomp import parallel, targets
from jaxcomp.base import Exchange, Spec
from jaxcomp.errors import UserError
from jaxcomp.prediction.measuring import Local, start_of, step_of
from jaxcomp.specs import suggest
from jaxcomp.targets.chips import GPUS

__all__ = ["target_seconds"]

_LAUNCH_SECONDS = 3e-6  # of a kernel; 2 to 4 are usual
_WAIT_SECONDS = 20e-6  # of the host, for a loop whose length follows from data


def target_seconds(name: str, workers: int, per_host: int = 1) -> Local:
    """Make a function that models how long exchanges compute on a GPU.

    Args:
      name: of the GPU, such as "a100".
      workers: one GPU each.
      per_host: of them.

    Raises:
      UserError: the GPU is not known, or XLA's compiler for it is not installed.
    """
    if name not in GPUS:
        raise UserError(
            f"no memory bandwidth is known of {name!r}. {suggest(name, GPUS)}"
        )
    target = targets.make(name, workers // per_host, per_host, axis=parallel.AXIS)

    def seconds(every: Sequence[Exchange], spec: Spec) -> list[float]:
        return [_modelled(_compiled(each, spec, target), name) for each in every]

    return seconds


def _compiled(exchange: Exchange, spec: Spec, target: targets.Target) -> Any:
    state = start_of(exchange, spec)
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        step_of(exchange),
        target.workers,
        in_axes=(axes, 0),
        out_axes=(None, axes),
        donate_argnums=(0,),
    )
    given = targets.specs(state, target, axes), targets.specs(spec, target)
    return targets.compiled(mapped, target, *given)


def _modelled(compiled: Any, name: str) -> float:
    program = targets.read(compiled)
    return (
        program.launches * _LAUNCH_SECONDS
        + targets.memory_traffic(compiled) / GPUS[name].bandwidth
        + len(program.open_loops) * _WAIT_SECONDS
    )

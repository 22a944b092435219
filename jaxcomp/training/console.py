"""What a run says first and last, and its result."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp.runs.frame import traffic_line
from jaxcomp.training.build import Setup, parameter_count
from jaxcomp.training.evaluation import OwnScores
from jaxcomp.training.state import TrainState
from jaxcomp.training.traffic import Traffic

__all__ = ["Result", "headline", "summary"]


class Result(NamedTuple):
    """The final state and figures of a run."""

    state: TrainState
    steps: int
    skipped: float  # of them
    test_loss: float
    test_accuracy: float  # of the mean model, where workers have their own
    best_accuracy: float
    own: OwnScores | None  # of the workers' own models
    traffic: Traffic
    seconds: float  # of training steps; compiling is not in it
    folder: Path


def summary(result: Result) -> dict[str, str]:
    """The closing lines of a run, as `frame.closing_lines` takes them."""
    traffic, steps, own = result.traffic, result.steps, result.own
    last, best = result.test_accuracy, result.best_accuracy
    traced = ", as traced" if traffic.unread else ""
    sent, dense = traffic.wire * steps, traffic.dense * steps
    moved = traffic_line(sent, dense, steps, moved=not traffic.simulated, notes=traced)
    of_mean = " of the mean model" if own else ""
    lines = {"test accuracy": f"{last:.2%} (best {best:.2%}){of_mean}"}
    if own:
        lines["own models"] = f"{own.mean:.2%} on average, {own.worst:.2%} the worst"
    lines["each worker"] = f"{moved}, {result.seconds:.1f} s without compiling"
    if result.skipped:
        count = f"{result.skipped:,.4g} of {steps} steps"
        lines["skipped"] = f"{count}, which were not finite"
    return lines


def headline(config: Any, setup: Setup) -> str:
    """The opening lines of a run: model, data, workers and method."""
    workers = setup.workers
    used, found = (1 if workers.mesh is None else workers.size), jax.device_count()
    devices = f"{workers.mapper} on {used} of {found} {jax.default_backend()} devices"
    if used < found:
        devices += f", {found - used} idle"
    if jax.process_count() > 1:
        devices += f", {jax.process_count()} processes"
    simulated = " (SIMULATED: see docs/methods.md)" if setup.method.simulated else ""
    unused = ""
    if setup.stages.at(0).compressor is None and config.compressor != "none":
        unused = f" ({config.compressor!r} is of no use to {config.exchange!r})"
    parameters = parameter_count(jax.eval_shape(setup.fresh).params)
    return (
        f"{setup.task.model} ({parameters:,} parameters) on "
        f"{setup.task.data}: {workers.size} workers ({devices})\n"
        f"method: {setup.method.name}{simulated}{unused}\n"
        f"{setup.total_steps} steps of {config.batch_size} examples"
    )

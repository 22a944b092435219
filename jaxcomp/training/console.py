"""What a run says first and last, and its result."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp.runs.frame import traffic_line
from jaxcomp.tasks import Measure
from jaxcomp.training.build import Setup, parameter_count
from jaxcomp.training.evaluation import OwnScores
from jaxcomp.training.state import TrainState
from jaxcomp.training.traffic import Traffic

__all__ = ["Result", "headline", "score_line", "summary"]


class Result(NamedTuple):
    """The final state and figures of a run."""

    state: TrainState
    steps: int
    skipped: float  # of them, as not finite
    overflowed: float  # of them, as too large for float16 with the loss scale
    test_loss: float
    test_accuracy: float  # of the mean model, where workers have their own
    measure: Measure  # of the task, of which these two are values
    test: float
    best: float
    own: OwnScores | None  # of the workers' own models
    ema: float | None  # of the averaged weights, where there are some
    traffic: Traffic
    seconds: float  # of training steps; compiling is not in it
    folder: Path


def summary(result: Result) -> dict[str, str]:
    """The closing lines of a run, as `frame.closing_lines` takes them."""
    traffic, steps, own = result.traffic, result.steps, result.own
    measure = result.measure
    traced = ", as traced" if traffic.unread else ""
    simulated, whom = traffic.simulated, traffic.whom
    moved = traffic_line(traffic.of(steps), steps, moved=not simulated, whom=whom)
    of_mean = " of the mean model" if own else ""
    last, best = measure.text(result.test), measure.text(result.best)
    lines = {f"test {measure.name}": f"{last} (best {best}){of_mean}"}
    if own:
        mean, worst = measure.text(own.mean), measure.text(own.worst)
        lines["own models"] = f"{mean} on average, {worst} the worst"
    if result.ema is not None:
        lines["averaged weights"] = measure.text(result.ema)
    lines[f"each {traffic.sender}"] = (
        f"{moved}{traced}, {result.seconds:.1f} s without compiling"
    )
    left_out = {
        "skipped": (result.skipped, "which were not finite"),
        "overflowed": (result.overflowed, "after which the loss scale was halved"),
    }
    for name, (count, why) in left_out.items():
        if count:
            lines[name] = f"{count:,.4g} of {steps} steps, {why}"
    return lines


def score_line(scores: dict[str, float]) -> str:
    """What is told of the evaluation of a checkpoint.

    Example:
      >>> score_line({"step": 8, "test_loss": 0.25, "test_accuracy": 0.9})
      'step 8: test loss 0.2500, accuracy 90.00%'
    """
    split = "train" if "train_loss" in scores else "test"
    known = ("step", f"{split}_loss", f"{split}_accuracy")
    step, loss, accuracy = (scores[name] for name in known)
    others = [
        f", {name.removeprefix(f'{split}_')} {value:.4f}"
        for name, value in scores.items()
        if name not in known
    ]
    text = f"step {step}: {split} loss {loss:.4f}, accuracy {accuracy:.2%}"
    return "".join([text, *others])


def headline(config: Any, setup: Setup) -> str:
    """The opening lines of a run: model, data, workers and method."""
    workers = setup.workers
    used, found = (1 if workers.mesh is None else workers.devices), jax.device_count()
    devices = f"{workers.mapper} on {used} of {found} {jax.default_backend()} devices"
    if workers.per_device > 1:
        devices += f", {workers.per_device} on each"
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
        f"{_length(setup)}"
    )


def _length(setup: Setup) -> str:
    """The steps of each phase and their examples, and what the first regime sets."""
    total, size = setup.total_steps, setup.workers.size
    phases = [phase for phase in setup.calendar.phases if phase.first < total]
    ends = [phase.first for phase in phases[1:]] + [total]
    lines = [
        f"{end - phase.first} steps of {phase.horizon.batch_size} examples, "
        f"{phase.horizon.batch_size // size} from each worker"
        for phase, end in zip(phases, ends, strict=True)
    ]
    first = setup.regimes.each[0]
    return "\n".join([*lines, *([str(first)] if first.settings else [])])

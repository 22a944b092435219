"""What a run says at its begin and end, and a dry run."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomp.core.types import Tree
from jaxcomp.core.units import bytes_text
from jaxcomp.data import DataError
from jaxcomp.data.preparable import stand_in_for
from jaxcomp.mixers.gossip.topology import graph_facts
from jaxcomp.parallel import Workers
from jaxcomp.runs.display import traffic_line
from jaxcomp.runs.folder import check_config
from jaxcomp.runs.open_run import Frame
from jaxcomp.training import checkpoints
from jaxcomp.training.optimizers import node_count
from jaxcomp.training.plan import (
    RunPlan,
    build,
    gather_workers,
    parameter_count,
    settled,
)
from jaxcomp.training.programs import Traffic, leaver, run_traffic
from jaxcomp.training.running_metrics import OwnScores, Scores
from jaxcomp.training.state import TrainState
from jaxcomp.training.tasks import Measure


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


def facts_of(plan: RunPlan) -> dict[str, Any]:
    """What environment.json says of a run, beside its machine."""
    config = plan.config
    return {
        "method": plan.method.name,
        "model": plan.task.model,
        "data": plan.task.data,
        "measure": plan.measure.name,
        "leaver": leaver(plan),
        "simulated": plan.method.simulated or plan.workers.mapper == "vmap",
        **graph_facts(config.topology, node_count(config)),
    }


def result_of(
    plan: RunPlan,
    frame: Frame,
    state: TrainState,
    progress: checkpoints.Progress,
    scores: Scores,
    traffic: Traffic,
) -> Result:
    """The result of a run; `traffic` is that of its last step."""
    measure, total = plan.measure, plan.total_steps
    last = measure.of(*scores[:2])
    return Result(
        state=state,
        steps=total,
        skipped=progress.skipped,
        overflowed=progress.overflowed,
        test_loss=scores.loss,
        test_accuracy=scores.accuracy,
        measure=measure,
        test=last,
        best=measure.better(last, progress.best),
        own=progress.own,
        ema=progress.ema and measure.of(*progress.ema[:2]),
        traffic=traffic._replace(
            wire=progress.sent / max(1, total),
            left=progress.left / max(1, total),
            exact=progress.exact / max(1, total),
        ),
        seconds=progress.seconds,
        folder=frame.folder,
    )


def summary(result: Result) -> dict[str, str]:
    """The closing lines of a run, as `display.closing_lines` takes them."""
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
    text = f"step {step}: {split} loss {loss:.4f}, accuracy {accuracy:.2%}"
    for name in [name for name in scores if name not in known]:
        text += f", {name.removeprefix(f'{split}_')} {scores[name]:.4f}"
    return text


def headline(plan: RunPlan) -> str:
    """The opening lines of a run: model, data, workers and method."""
    config, workers = plan.config, plan.workers
    used, found = (1 if workers.mesh is None else workers.devices), jax.device_count()
    devices = f"{workers.mapper} on {used} of {found} {jax.default_backend()} devices"
    if workers.per_device > 1:
        devices += f", {workers.per_device} on each"
    if used < found:
        devices += f", {found - used} idle"
    if jax.process_count() > 1:
        devices += f", {jax.process_count()} processes"
    simulated = " (SIMULATED: see docs/methods.md)" if plan.method.simulated else ""
    unused = ""
    if plan.stages.at(0).compressor is None and config.compressor != "none":
        unused = f" ({config.compressor!r} is of no use to {config.exchange!r})"
    parameters = parameter_count(plan.params)
    return (
        f"{plan.task.model} ({parameters:,} parameters) on "
        f"{plan.task.data}: {workers.size} workers ({devices})\n"
        f"method: {plan.method.name}{simulated}{unused}\n"
        f"{_length(plan)}"
    )


def _length(plan: RunPlan) -> str:
    """The steps of each batch size and their examples, and the first settings."""
    total, size = plan.total_steps, plan.workers.size
    each = [calendar for calendar in plan.segments.calendars if calendar.first < total]
    ends = [calendar.first for calendar in each[1:]] + [total]
    lines = [
        f"{end - calendar.first} steps of {calendar.horizon.batch_size} examples, "
        f"{calendar.horizon.batch_size // size} from each worker"
        for calendar, end in zip(each, ends, strict=True)
    ]
    first = plan.segments.each[0]
    return "\n".join([*lines, *([str(first)] if first.settings else [])])


_ROWS = 11  # of the schedule: both ends of each tenth of the run


def dry_run(config: Any, workdir: str | os.PathLike[str]) -> str:
    """Build what a run needs, write nothing, and say what the run would do.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workdir: run folder, which need not exist.

    Raises:
      UserError: as the run would.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workers = gather_workers(config)
        config = settled(config, workers)
        plan = _built(config, workers)
    notes = [str(warning.message) for warning in caught]
    lines = [
        f"run folder: {workdir}, {_place(config, Path(workdir))}",
        headline(plan),
        *_run_length(plan),
        *_bytes(plan, notes),
        _memory(plan),
        "",
        *_schedule(plan, plan.segments.steps_at(config, "warmup")),
    ]
    if config.init_from and checkpoints.begins(Path(workdir)):
        start = checkpoints.read_start(config.init_from, plan)
        lines.append(f"weights of {start.checkpoint}")
    lines += [f"WARNING: {note}" for note in notes]
    return "\n".join([*lines, "", "Nothing was trained or written: a dry run."])


def _built(config: Any, workers: Workers) -> RunPlan:
    """The plan of a run; of published shapes, if its data are not prepared."""
    try:
        return build(config, workers)
    except DataError as missing:
        stand_in = stand_in_for(config.dataset, config.data_dir or None)
        if not stand_in:
            raise
        warnings.warn(f"of published shapes only: {missing}", stacklevel=1)
        changed = config.copy_and_resolve_references()
        changed.dataset = stand_in
        return build(changed, workers)


def _place(config: Any, folder: Path) -> str:
    """What the folder holds; refuses one of another config."""
    if not (folder / "config.json").exists():
        return "a new run"
    check_config(folder, json.loads(config.to_json()))
    steps = checkpoints.steps_in(folder / "checkpoints")
    return f"goes on from step {max(steps)}" if steps else "begun, without a checkpoint"


def _run_length(plan: RunPlan) -> Iterator[str]:
    """How long the run is, and a line for each segment that begins in it."""
    run, total = plan.segments, plan.total_steps
    epochs, examples = float(run.epochs(total)), run.examples(total)
    each = " or ".join(f"{c.horizon.steps_per_epoch:,}" for c in run.calendars)
    name = "epoch" if epochs == 1 else "epochs"
    yield f"{epochs:.4g} {name} of {each} steps, {examples:,} examples in all"
    yield from (str(r) for r in plan.segments.each[1:] if r.first < total)


def _bytes(plan: RunPlan, notes: list[str]) -> Iterator[str]:
    """A line for the first and for the last step, where they differ; and for all."""
    total = plan.total_steps
    whole, found = run_traffic(plan)
    numbers = {plan.stages.at(n): n for n in (total - 1, 0)}
    for stage, number in reversed(numbers.items()):
        yield f"step {number + 1:,}, {stage}: {found[stage]}"
        if found[stage].wire > found[stage].dense:
            notes.append(f"step {number + 1:,} sends more than the gradient itself")
    told = traffic_line(whole.of(total), total, moved=False, whom=whole.whom)
    yield f"the run: {told}"


def _memory(plan: RunPlan) -> str:
    state = jax.eval_shape(plan.fresh)
    params, rest = _size(state.params), _size((state.stats, state.carry))
    kept, count = _size(state.opt_state), plan.workers.size
    where = "" if plan.workers.mesh else f", {bytes_text(count * _size(state))} of all"
    return (
        f"each worker keeps {bytes_text(_size(state))}{where}: parameters "
        f"{bytes_text(params)}, optimiser and memory {bytes_text(kept)}, others "
        f"{bytes_text(rest)}; gradients and activations come on top"
    )


def _size(tree: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _schedule(plan: RunPlan, warmup: int) -> Iterator[str]:
    """The learning rate at both ends of the run, of its warm-up and of each segment."""
    run, total = plan.segments, plan.total_steps
    begins = [n for segment in run.each[1:] for n in (segment.first, segment.first + 1)]
    between = np.linspace(1, total, _ROWS).round().astype(int).tolist()
    yield f"{'step':>10}{'epoch':>9}  learning rate"
    for step in sorted({warmup or 1, *(n for n in begins if n < total), *between}):
        epochs, rate = float(run.epochs(step)), plan.rate_on_host(step - 1)
        yield f"{step:>10,}{epochs:>9.2f}  {rate:.4g}"

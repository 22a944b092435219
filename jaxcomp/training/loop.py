"""The run: from a config and a folder to a trained model, through any interruption."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcomp import parallel
from jaxcomp.base import is_per_worker
from jaxcomp.errors import UserError
from jaxcomp.training.build import Pieces, build, parameter_count
from jaxcomp.training.checkpoint import open_checkpoints
from jaxcomp.training.evaluation import (
    OwnScores,
    make_evaluator,
    make_own_evaluator,
    make_viewer,
)
from jaxcomp.training.feed import train_feed
from jaxcomp.training.growth import growth_line
from jaxcomp.training.interrupt import Interrupted, catch_signals
from jaxcomp.training.meters import (
    Timing,
    Totals,
    check_applied,
    gradient_norm,
    residual_norm,
    step_row,
)
from jaxcomp.training.position import Position, plain, resume
from jaxcomp.training.progress import Display, display, epoch_line
from jaxcomp.training.rows import epoch_row, score_columns
from jaxcomp.training.run_folder import Table, open_run, open_tables
from jaxcomp.training.schedules import Horizon, steps_of
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.traffic import Traffic, programs

__all__ = ["Result", "evaluate", "headline", "train_and_evaluate"]


class Result(NamedTuple):
    """What a run ends with."""

    state: TrainState
    steps: int
    test_loss: float
    test_accuracy: float  # of the mean model, where workers have their own
    best_accuracy: float
    own: OwnScores | None  # of the workers' own models
    traffic: Traffic
    seconds: float  # of training steps
    folder: Path


class Intervals(NamedTuple):
    """When things are due, in steps; 0 is never."""

    evaluate: int  # whole epochs
    evaluate_own: int  # likewise; 0: at the end alone
    checkpoint: int
    keep: int
    log: int


def train_and_evaluate(config: Any, workdir: str | Path) -> Result:
    """Train as a config says, from where the folder's run stands.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workdir: run folder. Empty or absent: a new run. With a run of the same config:
        goes on from its newest whole checkpoint.

    Returns:
      Final state and figures.

    Raises:
      UserError: a name or value in the config; the message lists the valid ones.
      NonFinite: a NaN or infinity, where config.nonfinite is "stop".
      Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    folder = Path(workdir)
    pieces = build(config)
    first = jax.process_index() == 0
    if first:
        method = {
            "method": pieces.method.name,
            "simulated": pieces.method.simulated or pieces.workers.mapper == "vmap",
        }
        open_run(folder, json.loads(config.to_json()), method)
    with (
        catch_signals() as caught,
        display(pieces.total_steps, quiet=not first) as show,
    ):
        return _run(config, folder, pieces, show, caught)


def evaluate(config: Any, workdir: str | Path, which: str = "best") -> dict[str, float]:
    """Test loss and accuracy of a checkpoint of a run.

    Args:
      config: of the run.
      workdir: its folder.
      which: "best" or "latest".
    """
    pieces = build(config)
    state = parallel.spread(pieces.fresh(), pieces.workers)
    checkpoints = open_checkpoints(Path(workdir) / "checkpoints")
    restored = checkpoints.restore(parallel.abstract(state), which)
    if restored is None:
        raise UserError(f"{workdir} holds no {which} checkpoint; train first")
    shown = make_viewer(pieces, state)(restored.state).shown
    loss, accuracy = make_evaluator(pieces, state, config.batch_size)(shown)
    return {"step": restored.step, "test_loss": loss, "test_accuracy": accuracy}


def _run(
    config: Any,
    folder: Path,
    pieces: Pieces,
    show: Display,
    caught: Callable[[], int | None],
) -> Result:
    horizon, total, workers = pieces.horizon, pieces.total_steps, pieces.workers
    epochs = -(-total // horizon.steps_per_epoch)
    every = _intervals(config, horizon)
    # Steps of virtual CPU devices must not queue up; parallel.py says why.
    throttle = jax.default_backend() == "cpu"

    # --- State: fresh, or as the newest whole checkpoint left it -----------------
    checkpoints = open_checkpoints(folder / "checkpoints")
    fresh = parallel.spread(pieces.fresh(), workers)
    show.say(headline(config, pieces))
    state, position, start = resume(checkpoints, fresh)
    if start > total:
        message = (
            f"{folder} is at step {start}, and train_for={config.train_for!r} ends at "
            f"step {total}: ask for more, or take another --workdir"
        )
        raise ValueError(message)
    writes = jax.process_index() == 0
    tables = open_tables(folder, start, pieces.figures, writes=writes)
    if start:
        show.say(f"going on from step {start} of {total} in {folder}")

    # --- Programs ----------------------------------------------------------------
    program = programs(pieces, show.say)
    view = make_viewer(pieces, state)
    score = make_evaluator(pieces, state, config.batch_size)
    score_own = make_own_evaluator(pieces, state, config.batch_size)
    _, traffic = program(min(start, total - 1), state)
    feed = train_feed(pieces.task, local=workers.local, start=start)

    # --- Steps -------------------------------------------------------------------
    pending: list[tuple[int, StepMetrics, Timing]] = []
    for number in range(start, total):
        step, traffic = program(number, state)
        began = time.perf_counter()
        batch = parallel.place(next(feed), workers, 0)
        loaded = time.perf_counter()
        state, metrics = step(state, *batch)
        issued = time.perf_counter()
        if throttle:
            jax.block_until_ready((state, metrics))
        ready = time.perf_counter()
        timing = Timing(loaded - began, issued - loaded, ready - issued)
        pending.append((number, metrics, timing))
        position = position.with_bytes(traffic)

        done = number + 1
        epoch = -(-done // horizon.steps_per_epoch)
        ends_epoch = done % horizon.steps_per_epoch == 0 or done == total
        keep = _due(done, every.keep)
        saves = keep or done == total or _due(done, every.checkpoint)
        looks = ends_epoch or saves or _due(done, every.log)
        # Several processes must agree on a signal, which costs a message, so they ask
        # only where they look at the figures anyway.
        signum = caught() if looks or jax.process_count() == 1 else None
        if looks or signum:
            grew = position.growth.grows
            position = _account(
                pending,
                position,
                pieces,
                tables.steps,
                log_every=every.log,
                stops=config.nonfinite == "stop",
            )
            pending = []
            show.step(done, _status(position, epoch, epochs, timing, horizon))
            if position.growth.grows and not grew:
                show.say(growth_line(done, position.growth))

        is_best = False
        if ends_epoch or saves or signum:
            position = position._replace(totals=position.totals.over_processes())
        if ends_epoch:
            seen = view(state)
            state = seen.kept
            scores = own = None
            if epoch % every.evaluate == 0 or done == total:
                scores = score(seen.shown)
                is_best = position.best is None or scores.accuracy > position.best
                best = scores.accuracy if is_best else position.best
                position = position._replace(scores=scores, best=best)
            if is_per_worker(state.params) and (
                done == total or _due(epoch, every.evaluate_own)
            ):
                own = score_own(state)
                position = position._replace(own=own)
            row = epoch_row(done, position, pieces, traffic, seen.distance)
            row |= score_columns(scores, own)
            tables.epochs.append(row)
            show.say(epoch_line(row, epochs))
            position = position._replace(totals=Totals())

        # --- Save ----------------------------------------------------------------
        if saves or is_best or signum:
            checkpoints.save(state, plain(position), done, keep, is_best)
        if signum and done < total:
            message = f"stopped at step {done} of {total}; everything is saved"
            raise Interrupted(signum, message)

    scores = position.scores or score(view(state).shown)
    return Result(
        state=state,
        steps=total,
        test_loss=scores.loss,
        test_accuracy=scores.accuracy,
        best_accuracy=max(scores.accuracy, position.best or 0.0),
        own=position.own,
        traffic=traffic._replace(wire=position.sent / max(1, total)),
        seconds=position.seconds,
        folder=folder,
    )


def _intervals(config: Any, horizon: Horizon) -> Intervals:
    evaluate, own = (
        round(steps_of(every, horizon) / horizon.steps_per_epoch)
        for every in (config.eval_every, config.eval_workers_every)
    )
    return Intervals(
        evaluate=max(1, evaluate),
        evaluate_own=max(1, own) if config.eval_workers_every else 0,
        checkpoint=steps_of(config.checkpoint_every, horizon),
        keep=steps_of(config.keep_every, horizon),
        log=max(1, config.log_every),
    )


def _due(done: int, interval: int) -> bool:
    return interval > 0 and done % interval == 0


def _account(
    pending: list[tuple[int, StepMetrics, Timing]],
    position: Position,
    pieces: Pieces,
    table: Table,
    *,
    log_every: int,
    stops: bool,
) -> Position:
    """Add steps to the sums, log those that are due, and stop at a failed one."""
    totals, seconds, growth = position.totals, position.seconds, position.growth
    for number, on_device, timing in pending:
        metrics = parallel.to_host(on_device)
        seconds += timing.total
        if stops:
            check_applied(number, metrics, pieces.leaf_names)
        totals = totals.add(metrics)
        norms = gradient_norm(metrics), residual_norm(metrics)
        growth = growth.after(number + 1, *norms)
        if _due(number + 1, log_every):
            row = step_row(number, metrics, timing, pieces.horizon.batch_size)
            row["epoch"] = number // pieces.horizon.steps_per_epoch + 1
            row["learning_rate"] = float(pieces.rate(number))
            table.append(row)
    return position._replace(totals=totals, seconds=seconds, growth=growth)


def headline(config: Any, pieces: Pieces) -> str:
    """What is about to run."""
    workers = pieces.workers
    devices = (
        f"{workers.mapper} on {jax.device_count()} {jax.default_backend()} devices"
    )
    simulated = " (SIMULATED: see docs/methods.md)" if pieces.method.simulated else ""
    unused = ""
    if pieces.stages.at(0).compressor is None and config.compressor != "none":
        unused = f" ({config.compressor!r} is of no use to {config.exchange!r})"
    parameters = parameter_count(jax.eval_shape(pieces.fresh).params)
    return (
        f"{pieces.task.model} ({parameters:,} parameters) on "
        f"{pieces.task.data}: {workers.size} workers ({devices})\n"
        f"method: {pieces.method.name}{simulated}{unused}\n"
        f"{pieces.total_steps} steps of {config.batch_size} examples"
    )


def _status(
    position: Position, epoch: int, epochs: int, timing: Timing, horizon: Horizon
) -> str:
    means = position.totals.means()
    return (
        f"epoch {epoch}/{epochs}  loss {means['train_loss']:.4f}  "
        f"accuracy {means['train_accuracy']:.2%}  "
        f"{horizon.batch_size / timing.total:,.0f} images/s"
    )

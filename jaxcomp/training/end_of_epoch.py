"""What a run does at a look and at the end of an epoch, and how it ends."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxcomp.core.types import Tree, is_per_worker
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.runs.open_run import Frame
from jaxcomp.training.diagnostics import (
    distance_between,
    make_layer_view,
    params_on_host,
)
from jaxcomp.training.evaluation import (
    Scores,
    make_own_evaluator,
    make_viewer,
    of_average,
)
from jaxcomp.training.progress import Position
from jaxcomp.training.running_metrics import (
    Timing,
    Totals,
    check_applied,
    check_loss,
    growth_line,
    step_figures,
)
from jaxcomp.training.setup import Due, Setup, is_due
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.tables import (
    Tables,
    ema_columns,
    epoch_line,
    epoch_row,
    score_columns,
)
from jaxcomp.training.tasks import Measure
from jaxcomp.training.traffic import Traffic


def account(
    first: int,
    taken: list[StepMetrics],
    everyone: list[StepMetrics],
    timing: Timing,
    position: Position,
    setup: Setup,
    config: Any,
    tables: Tables,
    frame: Frame,
) -> Position:
    """Add steps to the sums, log those that are due, and stop at a failed one.

    Args:
      first: number of the first step, from 0.
      taken: the figures of that step and of those after it, NumPy arrays.
      everyone: the same of the workers of all processes, from `of_all_workers`.
      timing: of each of them, the mean.
      position: before them.
      setup: of the run.
      config: of the run.
      tables: of the run.
      frame: of the run.
    """
    totals, seconds, growth = position.totals, position.seconds, position.growth
    measure = setup.task.measure
    pairs = zip(taken, everyone, strict=True)
    for number, (metrics, of_all) in enumerate(pairs, start=first):
        if config.nonfinite == "stop":
            check_applied(number, metrics, setup.leaf_names)
        figures = step_figures(of_all)
        totals = totals.add(figures)
        grew = growth.grows
        growth = growth.after(
            number + 1, figures["gradient_norm"], figures["residual_norm"]
        )
        if growth.grows and not grew:
            frame.show.say(growth_line(number + 1, growth))
        if np.any(of_all.applied):  # the time of a skipped step taught nothing
            seconds += timing.total
        if is_due(number + 1, config.log_every):
            tables.steps(
                {
                    "step": number + 1,
                    "epoch": setup.calendar.epoch_at(number),
                    "learning_rate": setup.rate_on_host(number),
                    "data_seconds": timing.data,
                    "step_seconds": timing.step,
                    "wait_seconds": timing.wait,
                    "images_per_second": setup.calendar.batch_at(number) / timing.total,
                    measure.name: measure.of(figures["loss"], figures["accuracy"]),
                    **figures,
                }
            )
        check_loss(number, metrics, config.loss_limit)
    return position._replace(totals=totals, seconds=seconds, growth=growth)


def status(
    position: Position, epoch: int, epochs: int, speed: float, measure: Measure
) -> str:
    """The text beside the live progress bar."""
    figures = position.totals.figures()
    loss, accuracy = figures["train_loss"], figures["train_accuracy"]
    if loss is None or accuracy is None:
        return f"epoch {epoch}/{epochs}  every step skipped so far"
    return (
        f"epoch {epoch}/{epochs}  loss {loss:.4f}  {measure.name} "
        f"{measure.text(measure.of(loss, accuracy))}  {speed:,.0f} examples/s"
    )


def make_end_of_epoch(
    setup: Setup,
    state: TrainState,
    score: Callable[[TrainState], Scores],
    tables: Tables,
    frame: Frame,
    initial: Tree | None = None,
) -> Callable[..., tuple[TrainState, Position, bool]]:
    """Make a function that evaluates what is due, and writes the row of an epoch.

    Args:
      setup: of the run.
      state: like those that will be evaluated.
      score: evaluates a state.
      tables: where the row goes.
      frame: of the run.
      initial: parameters with which it began, on the host; None where they are lost.

    Returns:
      A function that returns the state to go on with, the position, and whether it is
      the best so far.
    """
    view = make_viewer(setup, state)
    score_own, measure = make_own_evaluator(setup, state), setup.task.measure
    view_layers = make_layer_view(setup, state)
    epochs = setup.calendar.epoch_at(setup.total_steps - 1)

    def end_of_epoch(
        done: int, due: Due, state: TrainState, position: Position, traffic: Traffic
    ) -> tuple[TrainState, Position, bool]:
        seen = view(state)
        scores = own = ema = None
        is_best = False
        if due.evaluates:
            scores = score(seen.shown)
            value = measure.of(*scores[:2])
            is_best = measure.beats(value, position.best)
            best = measure.better(value, position.best)
            ema = of_average(score, seen.shown)
            position = position._replace(scores=scores, best=best, ema=ema)
        if due.evaluates_own and is_per_worker(state.params):
            own = score_own(seen.kept)
            position = position._replace(own=own)
        row = epoch_row(done, position, setup, traffic, seen.distance)
        row |= score_columns(scores, own, measure) | ema_columns(ema, measure)
        if initial is not None:
            now = params_on_host(seen.shown)
            row["distance"] = distance_between(now, initial)
        layers = view_layers(state, done, due.epoch) if due.views_layers else []

        def write() -> None:
            tables.epochs(row)
            for layer in layers:
                tables.layers(layer)

        on_all_processes(write)
        frame.show.say(epoch_line(row, epochs, measure))
        skipped = position.skipped + row["skipped_steps"]
        overflowed = position.overflowed + (row.get("overflowed_steps") or 0.0)
        position = position._replace(
            totals=Totals(), skipped=skipped, overflowed=overflowed
        )
        return seen.kept, position, is_best

    return end_of_epoch

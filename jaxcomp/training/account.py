"""The figures of steps are added up, written to steps.csv and shown on the console."""

from typing import Any

import numpy as np

from jaxcomp.runs.frame import Frame
from jaxcomp.tasks import Measure
from jaxcomp.training.build import Setup
from jaxcomp.training.due import is_due
from jaxcomp.training.growth import growth_line
from jaxcomp.training.meters import Timing, check_applied, check_loss, step_figures
from jaxcomp.training.position import Position
from jaxcomp.training.step import StepMetrics
from jaxcomp.training.tables import Tables

__all__ = ["account", "status"]


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

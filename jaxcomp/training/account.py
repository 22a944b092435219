"""The figures of steps are added up, written to steps.csv and shown on the console."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.runs.frame import Frame
from jaxcomp.runs.metrics import EPOCHS, STEPS
from jaxcomp.runs.table import Append, open_table
from jaxcomp.tasks import Measure
from jaxcomp.training.build import Setup
from jaxcomp.training.due import is_due
from jaxcomp.training.epoch_row import measured
from jaxcomp.training.growth import growth_line
from jaxcomp.training.meters import Timing, check_applied, step_figures
from jaxcomp.training.position import Position
from jaxcomp.training.step import StepMetrics

__all__ = ["Tables", "account", "open_tables", "status"]


class Tables(NamedTuple):
    """The two tables of a run; all processes but the first drop the rows."""

    epochs: Append
    steps: Append


def open_tables(frame: Frame, start: int, setup: Setup) -> Tables:
    """metrics.csv and steps.csv without the rows after the step a run goes on from.

    Args:
      frame: of the run.
      start: that step.
      setup: of the run: what its exchange and its task report are further columns.
    """
    if not frame.writes:
        return Tables(lambda row: None, lambda row: None)

    def is_done(row: dict[str, int]) -> bool:
        return row["step"] <= start

    paths: list[Path] = [frame.folder / name for name in ("metrics.csv", "steps.csv")]
    for path in paths:
        if start and not path.exists():
            frame.show.say(f"WARNING: {path} is lost; it begins again at step {start}")
    return Tables(
        open_table(paths[0], EPOCHS, is_done, measured(setup.task.measure)),
        open_table(paths[1], STEPS, is_done, (*setup.figures, setup.task.measure.name)),
    )


def account(
    first: int,
    taken: list[StepMetrics],
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
      timing: of each of them, the mean.
      position: before them.
      setup: of the run.
      config: of the run.
      tables: of the run.
      frame: of the run.
    """
    totals, seconds, growth = position.totals, position.seconds, position.growth
    measure = setup.task.measure
    for number, metrics in enumerate(taken, start=first):
        if config.nonfinite == "stop":
            check_applied(number, metrics, setup.leaf_names)
        figures = step_figures(metrics)
        totals = totals.add(figures)
        grew = growth.grows
        growth = growth.after(
            number + 1, figures["gradient_norm"], figures["residual_norm"]
        )
        if growth.grows and not grew:
            frame.show.say(growth_line(number + 1, growth))
        if np.any(metrics.applied):  # the time of a skipped step taught nothing
            seconds += timing.total
        if is_due(number + 1, config.log_every):
            tables.steps(
                {
                    "step": number + 1,
                    "epoch": number // setup.horizon.steps_per_epoch + 1,
                    "learning_rate": setup.rate_on_host(number),
                    "data_seconds": timing.data,
                    "step_seconds": timing.step,
                    "wait_seconds": timing.wait,
                    "images_per_second": setup.horizon.batch_size / timing.total,
                    measure.name: measure.of(figures["loss"], figures["accuracy"]),
                    **figures,
                }
            )
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

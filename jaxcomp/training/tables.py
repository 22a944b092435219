"""The tables of a run, and the loggers that are given the same rows."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxcomp import loggers
from jaxcomp.runs.frame import Frame
from jaxcomp.runs.metrics import EPOCHS, LAYERS, STEPS
from jaxcomp.runs.table import Append, open_table, read_rows
from jaxcomp.training.build import Setup
from jaxcomp.training.epoch_row import ema_columns, measured
from jaxcomp.training.evaluation import Scores

__all__ = ["Tables", "columns_of", "open_tables"]


class Tables(NamedTuple):
    """Where the rows of a run go; all processes but the first drop them."""

    epochs: Append
    steps: Append
    layers: Append


@contextlib.contextmanager
def open_tables(
    frame: Frame, start: int, setup: Setup, config: Mapping[str, Any]
) -> Iterator[Tables]:
    """The tables without the rows after the step a run goes on from, and the loggers.

    Args:
      frame: of the run.
      start: that step.
      setup: of the run.
      config: of the run, plain values, for loggers.
    """
    if not frame.writes:
        yield Tables(_dropped, _dropped, _dropped)
        return

    def is_done(row: dict[str, int]) -> bool:
        return row["step"] <= start

    def is_epoch_done(row: dict[str, int]) -> bool:
        return setup.calendar.end_of(row["epoch"]) <= start

    # What the exchange and the task report are further columns.
    of_epoch = columns_of(setup, config)
    epochs = open_table(frame.folder / "metrics.csv", EPOCHS, is_done, of_epoch)
    of_step = (*setup.figures, setup.task.measure.name)
    steps = open_table(frame.folder / "steps.csv", STEPS, is_done, of_step)
    layers_path = frame.folder / "layers.csv"
    if layers_path.exists() or config["layers_every"]:
        layers = open_table(layers_path, LAYERS, is_epoch_done)
    else:
        layers = _dropped
    run = loggers.RunSoFar(
        frame.folder,
        config,
        start,
        read_rows(frame.folder / "metrics.csv"),
        read_rows(frame.folder / "steps.csv"),
    )
    ended = setup.calendar.end_of(setup.calendar.epoch_at(start) - 1)
    looked = start - start % config["log_every"]
    for name, rows, done in (
        ("metrics", run.epochs, ended),
        ("steps", run.steps, looked),
    ):
        last = max((int(float(row["step"])) for row in rows), default=0)
        if last < done:
            lost = f"{name}.csv lacks the rows of steps {last + 1} to {done}"
            frame.show.say(f"WARNING: {lost}, which are lost")
    logger = loggers.opened(setup.loggers, run, frame.show.say)

    def epoch(row: dict[str, Any]) -> None:
        epochs(row)
        logger.epoch(row)

    def step(row: dict[str, Any]) -> None:
        steps(row)
        logger.step(row)

    try:
        yield Tables(epoch, step, layers)
    finally:
        logger.close()


def columns_of(setup: Setup, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of metrics.csv."""
    measure = setup.task.measure
    none = Scores(0.0, 0.0, dict.fromkeys(setup.task.scored, 0.0))
    averaged = ema_columns(none, measure) if config["ema"] else ()
    scored = (f"test_{name}" for name in setup.task.scored)
    return (*EPOCHS.columns, *measured(measure), *scored, *averaged)


def _dropped(row: dict[str, Any]) -> None:
    """Write nothing."""

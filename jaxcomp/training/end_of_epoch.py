"""What is due at the end of an epoch: evaluations, and a row of the tables."""

from collections.abc import Callable

from jaxcomp.base import Tree, is_per_worker
from jaxcomp.processes import on_all_processes
from jaxcomp.runs.frame import Frame
from jaxcomp.training.build import Setup
from jaxcomp.training.distance import distance_between, params_on_host
from jaxcomp.training.due import Due
from jaxcomp.training.epoch_row import (
    ema_columns,
    epoch_line,
    epoch_row,
    score_columns,
)
from jaxcomp.training.evaluation import (
    Scores,
    make_own_evaluator,
    make_viewer,
    of_average,
)
from jaxcomp.training.layers import make_layer_view
from jaxcomp.training.meters import Totals
from jaxcomp.training.position import Position
from jaxcomp.training.state import TrainState
from jaxcomp.training.tables import Tables
from jaxcomp.training.traffic import Traffic

__all__ = ["make_end_of_epoch"]


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

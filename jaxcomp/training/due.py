"""At which steps a run reads its figures, evaluates and saves."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxcomp.training.calendar import Calendar

__all__ = ["Due", "is_due", "timetable"]


class Due(NamedTuple):
    """What a run has to do after a step."""

    epoch: int  # from 1
    ends_epoch: bool  # or the run
    looks: bool  # at the figures, and whether a signal came
    saves: bool
    keeps: bool  # that checkpoint for ever
    evaluates: bool  # the one model, or the mean of the workers' own
    evaluates_own: bool  # each worker's model, where they have their own
    views_layers: bool  # what each layer loses


def timetable(
    config: Any,
    calendar: Calendar,
    total: int,
    changes: Callable[[int], bool] = lambda step: False,
) -> Callable[[int], Due]:
    """Make a function from the number of finished steps to what is due then.

    Args:
      config: of the run.
      calendar: of the run.
      total: steps of the run.
      changes: whether something changes after so many steps: then the run looks.
    """
    evaluate = calendar.epochs_every(config, "eval_every")
    own = calendar.epochs_every(config, "eval_workers_every")
    layers = calendar.epochs_every(config, "layers_every")
    ends_interval = calendar.every(config, "checkpoint_every")
    ends_kept = calendar.every(config, "keep_every")

    def due_at(done: int) -> Due:
        epoch, last = calendar.epoch_at(done - 1), done == total
        ends_epoch = last or done == calendar.end_of(epoch)
        keeps = ends_kept(done)
        saves = keeps or last or ends_interval(done)
        return Due(
            epoch=epoch,
            ends_epoch=ends_epoch,
            looks=ends_epoch
            or saves
            or changes(done)
            or is_due(done, config.log_every),
            saves=saves,
            keeps=keeps,
            evaluates=ends_epoch and (last or is_due(epoch, evaluate)),
            evaluates_own=ends_epoch and (last or is_due(epoch, own)),
            views_layers=ends_epoch and bool(layers) and (last or epoch % layers == 0),
        )

    return due_at


def is_due(done: int, interval: int) -> bool:
    """Whether an interval ends here; an interval of 0 never ends.

    Example:
      >>> is_due(20, 10), is_due(25, 10), is_due(25, 0)
      (True, False, False)
    """
    return interval > 0 and done % interval == 0

"""Durations in epochs, steps or examples. The loop counts steps."""

import math
from typing import Any, NamedTuple

from jaxcomp.errors import UserError, within
from jaxcomp.specs import suggest

__all__ = ["Duration", "Horizon", "read_duration", "steps_at", "steps_in", "steps_of"]


class Horizon(NamedTuple):
    """The length of an epoch and of a step, to convert durations to steps."""

    steps_per_epoch: int
    batch_size: int  # examples of all workers in one step


class Duration(NamedTuple):
    """A number of a unit."""

    amount: float
    unit: str  # "step", "epoch" or "example"


_UNITS = ("step", "epoch", "example")
_MOST = 2**31 - 1  # what a clock counts
_HINT = "Write for example '500 steps', '1.5 epochs' or '50_000 examples'"


def read_duration(text: str, *, may_be_zero: bool = False) -> Duration:
    """Read a duration such as "500 steps", "1.5 epochs" or "50_000 examples".

    An empty string is no steps: for things that never happen.

    Args:
      text: a number and a unit.
      may_be_zero: whether "0 epochs" is valid: for what begins with the run.

    Example:
      >>> read_duration("1.5 epochs")
      Duration(amount=1.5, unit='epoch')
    """
    if not text.strip():
        return Duration(0.0, "step")
    parts = text.split()
    if len(parts) != 2:
        raise UserError(f"not a duration: {text!r}. {_HINT}")
    unit = parts[1].rstrip("s")
    if unit not in _UNITS:
        raise UserError(f"unknown unit in {text!r}. {suggest(unit, _UNITS)}. {_HINT}")
    try:
        amount = float(parts[0])
    except ValueError:
        raise UserError(f"not a number in {text!r}. {_HINT}") from None
    if amount == 0 and may_be_zero:
        return Duration(0.0, unit)
    if not amount > 0 or math.isinf(amount):
        raise UserError(f"a duration is positive, not {text!r}. {_HINT}")
    if unit == "step" and amount % 1:
        raise UserError(f"a number of steps is whole, not {text!r}")
    return Duration(amount, unit)


def steps_in(duration: Duration, horizon: Horizon) -> int:
    """The steps in a duration, the last of which may go beyond it.

    Example:
      >>> steps_in(Duration(100, "example"), Horizon(steps_per_epoch=10, batch_size=32))
      4
    """
    if duration.amount == 0:
        return 0
    units = {
        "step": 1.0,
        "epoch": float(horizon.steps_per_epoch),
        "example": 1 / horizon.batch_size,
    }
    count = duration.amount * units[duration.unit]
    if count > _MOST:
        shown = f"{duration.amount:g} {duration.unit}s"
        raise UserError(f"{shown} are more than {_MOST:,} steps. {_HINT}")
    return max(1, math.ceil(count - 1e-9))


def steps_of(duration: str, horizon: Horizon) -> int:
    """Steps in a duration, where all steps are alike.

    Example:
      >>> steps_of("2 epochs", Horizon(steps_per_epoch=10, batch_size=32))
      20
    """
    return steps_in(read_duration(duration), horizon)


def steps_at(config: Any, key: str, horizon: Horizon) -> int:
    """The steps of the duration at a key of a config, where all steps are alike."""
    with within(key):
        return steps_of(config[key], horizon)

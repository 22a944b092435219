"""Durations in epochs, steps or examples. The loop counts steps."""

import math
from typing import Any, NamedTuple

from jaxcomp.errors import UserError
from jaxcomp.specs import suggest

__all__ = ["Horizon", "epochs_of", "steps_at", "steps_of"]


class Horizon(NamedTuple):
    """The length of an epoch and of a step, to convert durations to steps."""

    steps_per_epoch: int
    batch_size: int  # examples of all workers in one step


def steps_of(duration: str, horizon: Horizon, *, may_be_zero: bool = False) -> int:
    """Steps in a duration such as "500 steps", "1.5 epochs" or "50_000 examples".

    An empty string is no steps: for things that never happen.

    Args:
      duration: a number and a unit.
      horizon: what an epoch is, and how many examples a step takes.
      may_be_zero: whether "0 epochs" is valid: for what begins with the run.

    Example:
      >>> steps_of("2 epochs", Horizon(steps_per_epoch=10, batch_size=32))
      20
      >>> steps_of("100 examples", Horizon(steps_per_epoch=10, batch_size=32))
      4
    """
    if not duration.strip():
        return 0
    units = {
        "step": 1.0,
        "epoch": float(horizon.steps_per_epoch),
        "example": 1 / horizon.batch_size,
    }
    parts = duration.split()
    hint = "Write for example '500 steps', '1.5 epochs' or '50_000 examples'"
    if len(parts) != 2:
        raise UserError(f"not a duration: {duration!r}. {hint}")
    unit = parts[1].rstrip("s")
    if unit not in units:
        raise UserError(f"unknown unit in {duration!r}. {suggest(unit, units)}. {hint}")
    try:
        amount = float(parts[0])
    except ValueError:
        raise UserError(f"not a number in {duration!r}. {hint}") from None
    if amount == 0 and may_be_zero:
        return 0
    if not amount > 0 or math.isinf(amount):
        raise UserError(f"a duration is positive, not {duration!r}. {hint}")
    if unit == "step" and amount % 1:
        raise UserError(f"a number of steps is whole, not {duration!r}")
    return max(1, math.ceil(amount * units[unit] - 1e-9))


def steps_at(config: Any, key: str, horizon: Horizon) -> int:
    """The steps of the duration at a key of a config."""
    try:
        return steps_of(config[key], horizon)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def epochs_of(config: Any, key: str, horizon: Horizon) -> int:
    """The epochs of the duration at a key of a config; refuses parts of an epoch."""
    steps, each = steps_at(config, key, horizon), horizon.steps_per_epoch
    if steps % each:
        raise UserError(
            f"{key} counts in whole epochs, and {config[key]!r} is {steps / each:.3g} "
            f"epochs of {each} steps: write for example '{-(-steps // each)} epochs'"
        )
    return steps // each

"""Durations and learning rates in epochs, steps or examples.

The loop counts steps; people say "5 epochs". Schedules give a factor of the base rate.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from jaxcomp.errors import UserError
from jaxcomp.imported import importable
from jaxcomp.specs import Positive, Range, SpecError, build, publish, suggest

__all__ = [
    "REGISTRY",
    "FromZero",
    "Horizon",
    "epochs_of",
    "learning_rate",
    "steps_at",
    "steps_of",
]

Schedule = Callable[[ArrayLike], Array]
FromZero = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]


class Horizon(NamedTuple):
    """The length of an epoch and of a step, to convert durations to steps."""

    steps_per_epoch: int
    batch_size: int  # examples of all workers in one step


def steps_of(duration: str, horizon: Horizon) -> int:
    """Steps in a duration such as "500 steps", "1.5 epochs" or "50_000 examples".

    An empty string is no steps: for things that never happen.

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


def constant(horizon: Horizon, total: int) -> Schedule:
    """Factor 1 from the first step to the last."""
    return lambda step: jnp.float32(1)


def cosine(horizon: Horizon, total: int, final: Share = 0.0) -> Schedule:
    """Half a cosine from 1 to `final` over the whole run.

    References:
      Loshchilov and Hutter, SGDR, arXiv:1608.03983, 2017.
    """

    of_share = optax.cosine_decay_schedule(1.0, decay_steps=1, alpha=final)
    return lambda step: jnp.asarray(of_share(_real(step) / total))


def multistep(
    horizon: Horizon, total: int, epochs: Sequence[FromZero], factor: Positive = 0.1
) -> Schedule:
    """Multiply by `factor` at each of the given epochs."""
    if len(set(epochs)) < len(epochs):
        raise UserError(f"epochs {epochs} name one twice: write factor**2 once instead")
    borders: Any = {e * horizon.steps_per_epoch: factor for e in epochs}
    of_step = optax.piecewise_constant_schedule(1.0, borders)
    return lambda step: jnp.asarray(of_step(_real(step)))


def piecewise_linear(
    horizon: Horizon,
    total: int,
    epochs: Sequence[FromZero],
    values: Sequence[FromZero],
) -> Schedule:
    """Straight lines through (epoch, value); constant outside.

    Example:
      >>> horizon = Horizon(steps_per_epoch=10, batch_size=1)
      >>> rate = piecewise_linear(horizon, 240, epochs=(0, 5, 24), values=(0, 1, 0))
      >>> float(rate(25)), float(rate(240))
      (0.5, 0.0)
    """
    if len(epochs) != len(values) or list(epochs) != sorted(set(epochs)):
        message = f"epochs {epochs} must rise and be as many as values {values}"
        raise UserError(message)
    steps = jnp.asarray([e * horizon.steps_per_epoch for e in epochs], jnp.float32)
    heights = jnp.asarray(values, jnp.float32)

    return lambda step: jnp.interp(_real(step), steps, heights)


REGISTRY: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "multistep": multistep,
    "piecewise_linear": piecewise_linear,
}
publish(schedule=REGISTRY)

# What multiplies the rate: of the number of workers, and of those a worker hears,
# itself included.
_SCALINGS: dict[str, Callable[[int, int], float]] = {
    "none": lambda workers, heard: 1.0,
    "linear": lambda workers, heard: float(workers),
    "sqrt": lambda workers, heard: math.sqrt(workers),
    "degree": lambda workers, heard: float(heard),
}


def learning_rate(
    base: float,
    schedule: str,
    *,
    horizon: Horizon,
    total: int,
    warmup: int = 0,
    scaling: str = "none",
    workers: int = 1,
    degree: int | None = None,
) -> Schedule:
    """The learning rate at a step: base * scaling(workers) * schedule * warm-up.

    Args:
      base: peak rate before scaling.
      schedule: spec string of a schedule.
      horizon: from the data set and the batch size.
      total: steps of the whole run.
      warmup: steps over which a linear ramp multiplies the schedule.
      scaling: "none", "linear" or "sqrt" in the number of workers, or "degree": linear
        in how many a worker hears, itself included.
      workers: their number.
      degree: neighbours of a worker; None where there is no graph.
    """
    if scaling not in _SCALINGS:
        raise UserError(f"unknown scaling {scaling!r}. {suggest(scaling, _SCALINGS)}")
    if scaling == "degree" and degree is None:
        raise UserError("lr_scaling 'degree' is that of a graph: set topology")
    spec, known = importable(schedule, REGISTRY, "schedule")
    factor = build(spec, known, "schedule", horizon, total)
    if not callable(factor):
        made = type(factor).__name__
        message = f"schedule {schedule!r} makes a value of type {made}, no function"
        raise SpecError(message)
    peak = base * _SCALINGS[scaling](workers, (degree or 0) + 1)

    def rate(step: ArrayLike) -> Array:
        ramp = (_real(step) + 1) / max(warmup, 1)
        return peak * jnp.asarray(factor(step)) * jnp.minimum(ramp, 1.0)

    return rate


def _real(step: ArrayLike) -> Array:
    """A step count as float32, whatever type a caller counts in."""
    return jnp.asarray(step).astype(jnp.float32)

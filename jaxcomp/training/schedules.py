"""Schedules of the rate, their durations and scaling."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import (
    Count,
    Positive,
    Range,
    SpecError,
    build,
    importable,
    publish,
    suggest,
)


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


class Size(NamedTuple):
    """How large a run is."""

    workers: int
    heard: int | None  # workers that one hears, itself included; None without a graph
    batch: int  # examples of all workers in one step


def none(size: Size) -> float:
    """The rate as it is."""
    return 1.0


def linear(size: Size, base_batch_size: Count | None = None) -> float:
    """In the number of workers; or in the batch, whose rate is known for a base.

    Example:
      >>> linear(Size(4, None, 512)), linear(Size(4, None, 512), base_batch_size=256)
      (4.0, 2.0)

    References:
      Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, 2017.
    """
    if base_batch_size is None:
        return float(size.workers)
    return size.batch / base_batch_size


def sqrt(size: Size, base_batch_size: Count | None = None) -> float:
    """The root of what `linear` is."""
    return math.sqrt(linear(size, base_batch_size))


def degree(size: Size, base_batch_size: Count | None = None) -> float:
    """In the number of workers that one hears, itself included; or in their batches.

    Example:
      >>> degree(Size(8, 3, 1024)), degree(Size(8, 3, 1024), base_batch_size=64)
      (3.0, 6.0)
    """
    if size.heard is None:
        raise UserError("this scaling is that of a graph: set topology")
    if base_batch_size is None:
        return float(size.heard)
    return size.heard * (size.batch / size.workers) / base_batch_size


RATE_SCALINGS: dict[str, Callable[..., float]] = {
    "degree": degree,
    "linear": linear,
    "none": none,
    "sqrt": sqrt,
}


def scaled_by(scaling: str, size: Size) -> float:
    """The factor of a scaling: "none", "linear", "sqrt(base_batch_size=256)", ...

    Args:
      scaling: spec string.
      size: of the run.
    """
    return build(scaling, RATE_SCALINGS, "lr_scaling", size)


Schedule = Callable[[ArrayLike], Array]
FromZero = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
Rise = Annotated[float, Range(above=0, most=0.5)]


def constant(horizon: Horizon, total: int) -> Schedule:
    """Factor 1 from the first step to the last."""
    return lambda step: jnp.float32(1)


def cosine(
    horizon: Horizon, total: int, final: Share = 0.0, begin: FromZero = 0.0
) -> Schedule:
    """Half a cosine from 1 to `final` over the whole run, or from epoch `begin` on.

    References:
      Loshchilov and Hutter, SGDR, arXiv:1608.03983, 2017.
    """
    of_share = optax.cosine_decay_schedule(1.0, decay_steps=1, alpha=final)
    first = begin * horizon.steps_per_epoch
    length = max(total - first, 1)
    return lambda step: jnp.asarray(
        of_share(jnp.maximum(_real(step) - first, 0) / length)
    )


def polynomial(
    horizon: Horizon, total: int, power: Positive = 1.0, final: Share = 0.0
) -> Schedule:
    """final + (1 - final) (1 - t / T)^power over the whole run of T steps."""

    def factor(step: ArrayLike) -> Array:
        left = jnp.clip(1 - _real(step) / total, 0.0, 1.0)
        return final + (1 - final) * left**power

    return factor


def convex_decay(horizon: Horizon, total: int, epochs: Positive = 1.0) -> Schedule:
    """b / (b + t), with t in epochs and b=`epochs`: half of the rate is left at t = b.

    With a base rate of a / b this is the rate a / (b + t) of strongly convex problems.

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """
    steps = epochs * horizon.steps_per_epoch
    return lambda step: steps / (steps + _real(step))


def one_cycle(
    horizon: Horizon,
    total: int,
    rise: Rise = 0.45,
    low: Share = 0.05,
    final: Share = 0.0005,
) -> Schedule:
    """From `low` to 1 and back, each in a share `rise` of the run, then to `final`.

    References:
      Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using
      Large Learning Rates, arXiv:1708.07120, 2018.
    """
    shares = jnp.asarray([0.0, rise, 2 * rise, 1.0], jnp.float32)
    heights = jnp.asarray([low, 1.0, low, final], jnp.float32)
    return lambda step: jnp.interp(_real(step) / total, shares, heights)


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
    horizon: Horizon, total: int, epochs: Sequence[FromZero], values: Sequence[FromZero]
) -> Schedule:
    """Straight lines through (epoch, value); constant outside.

    An epoch that is named twice is a jump from the first of its values to the second:
    so each phase of a run may have a line of its own.

    Example:
      >>> horizon = Horizon(steps_per_epoch=10, batch_size=1)
      >>> rate = piecewise_linear(horizon, 240, epochs=(0, 5, 24), values=(0, 1, 0))
      >>> float(rate(25)), float(rate(240))
      (0.5, 0.0)
    """
    fits = 0 < len(epochs) == len(values) and list(epochs) == sorted(epochs)
    if not fits or any(list(epochs).count(e) > 2 for e in epochs):
        raise UserError(
            f"epochs {epochs} must rise and be as many as values {values}; an epoch "
            "may come twice, where the rate jumps"
        )
    points = [e * horizon.steps_per_epoch for e in epochs]
    # One more point makes the last one an inner one, where a jump is taken at once.
    steps = jnp.asarray([*points, points[-1] + 1], jnp.float32)
    heights = jnp.asarray([*values, values[-1]], jnp.float32)
    return lambda step: jnp.interp(_real(step), steps, heights)


REGISTRY: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "convex_decay": convex_decay,
    "cosine": cosine,
    "multistep": multistep,
    "one_cycle": one_cycle,
    "piecewise_linear": piecewise_linear,
    "polynomial": polynomial,
}
publish(schedule=REGISTRY)


def learning_rate(
    base: float,
    schedule: str,
    *,
    horizon: Horizon,
    total: float,
    warmup: float = 0,
    warmup_from: float = 0.0,
    scaling: str = "none",
    workers: int = 1,
    degree: int | None = None,
) -> Schedule:
    """The learning rate at a step: base * scaling * schedule * warm-up.

    Args:
      base: peak rate before scaling.
      schedule: spec string of a schedule.
      horizon: from the data set and the batch size.
      total: steps of the whole run, as long as those of the horizon.
      warmup: likewise steps, over which a linear ramp multiplies the schedule.
      warmup_from: the share of the rate from which the ramp rises.
      scaling: spec string of a scaling, of `rate_scaling`.
      workers: their number.
      degree: neighbours of a worker; None where there is no graph.
    """
    spec, known = importable(schedule, REGISTRY, "schedule")
    factor = build(spec, known, "schedule", horizon, total)
    if not callable(factor):
        made = type(factor).__name__
        message = f"schedule {schedule!r} makes a value of type {made}, no function"
        raise SpecError(message)
    heard = None if degree is None else degree + 1
    peak = base * scaled_by(scaling, Size(workers, heard, horizon.batch_size))

    def rate(step: ArrayLike) -> Array:
        risen = jnp.minimum((_real(step) + 1) / max(warmup, 1), 1.0)
        ramp = warmup_from + (1 - warmup_from) * risen
        return peak * jnp.asarray(factor(step)) * ramp

    return rate


def _real(step: ArrayLike) -> Array:
    """A step count as float32, whatever type a caller counts in."""
    return jnp.asarray(step).astype(jnp.float32)

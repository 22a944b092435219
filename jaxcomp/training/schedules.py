"""Learning rates: schedules give a factor of the base rate at each step."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from jaxcomp.errors import UserError
from jaxcomp.imported import importable
from jaxcomp.specs import Positive, Range, SpecError, build, publish
from jaxcomp.training.durations import Horizon
from jaxcomp.training.rate_scaling import Size, scaled_by

__all__ = ["REGISTRY", "FromZero", "Schedule", "learning_rate"]

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
    horizon: Horizon,
    total: int,
    epochs: Sequence[FromZero],
    values: Sequence[FromZero],
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

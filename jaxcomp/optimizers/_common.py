"""What every optimiser here needs: a bare exchange, and a link that makes the step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Clock, Exchange, Tree, ticked
from jaxcomp.errors import UserError
from jaxcomp.transform import distributed

__all__ = ["Rate", "check_bare", "decay_by", "scale_by_rate", "step_along"]

Rate = float | optax.Schedule


def check_bare(exchange: Exchange, name: str) -> None:
    """Refuse an exchange that brings a memory: the optimiser has its own.

    Args:
      exchange: from `make_exchange`.
      name: of the optimiser.
    """
    if not isinstance(exchange, Exchange):
        message = f"{name} takes an Exchange from make_exchange, not {exchange!r}"
        raise TypeError(message)
    if exchange.keeper or exchange.momentum:
        message = (
            f"{name} puts its own memory around the exchange, and {exchange.name!r} "
            "has one: make_exchange(..., memory='none')"
        )
        raise UserError(message)


def scale_by_rate(rate: Rate) -> optax.GradientTransformation:
    """Take a step against the update, as long as the rate at the run's step says.

    optax counts the steps that it is asked for; where one is not applied its count
    stands still, and it would follow another schedule than the rest of the run.

    Args:
      rate: a number, or a schedule: from the number of the step to a number.

    Example:
      >>> link = scale_by_rate(lambda step: 0.5**step)
      >>> update, clock = link.update(jnp.float32(3), Clock(jnp.int32(1)))
      >>> float(update), int(clock.step)
      (-1.5, 2)
    """
    if isinstance(rate, int | float) and not rate >= 0:
        raise UserError(f"a rate is a number from 0 or a schedule, not {rate!r}")

    def init(params: Tree) -> Clock:
        return Clock(jnp.int32(0))

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Clock]:
        factor = -jnp.asarray(rate(state.step) if callable(rate) else rate)
        scaled = jax.tree.map(lambda u: factor.astype(u.dtype) * u, updates)
        return scaled, ticked(state)

    return optax.GradientTransformation(init, update)


def decay_by(weight_decay: float) -> optax.GradientTransformation:
    """Add the decay of weights; without any, `update` needs no params."""
    return optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()


def step_along(
    exchange: Exchange, learning_rate: Rate, weight_decay: float, seed: int | None
) -> optax.GradientTransformationExtraArgs:
    """w <- w - rate (what the exchange answers + weight_decay w)."""
    return optax.chain(
        distributed(exchange, seed),
        decay_by(weight_decay),
        scale_by_rate(learning_rate),
    )

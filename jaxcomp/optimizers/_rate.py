"""How long a step is: the last link of every optimiser here."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Clock, Exchange, Tree, ticked
from jaxcomp.transform import distributed

__all__ = ["decay_by", "scale_by_rate", "step_along"]

Rate = float | optax.Schedule


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

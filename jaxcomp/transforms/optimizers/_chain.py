"""What all optimisers of this folder share: their exchange and their last links."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.errors import UserError
from jaxcomp.core.types import Clock, Exchange, Tree, ticked
from jaxcomp.transforms.distributed import distributed

Rate = float | optax.Schedule


def check_bare(exchange: Exchange, name: str) -> None:
    """Refuse an exchange that has a memory, because the optimiser adds its own.

    Args:
      exchange: from `make_exchange`.
      name: name of the optimiser.

    Raises:
      TypeError: this is not an exchange.
      UserError: the exchange has a memory.
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
    """Multiply updates by minus the learning rate of the run's current step.

    `optax.scale_by_learning_rate` counts only the steps that are applied. If some are
    skipped, it follows another schedule than the rest of the run.

    Args:
      rate: a number, or a schedule: number of the step -> learning rate.

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
    """Add decayed weights to the updates; a decay of 0 needs no parameters."""
    return optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()


def sgd_with(
    exchange: Exchange, learning_rate: Rate, weight_decay: float, seed: int | None
) -> optax.GradientTransformationExtraArgs:
    """The optimiser w <- w - rate (mean of the exchange + weight_decay w)."""
    return optax.chain(
        distributed(exchange, seed),
        decay_by(weight_decay),
        scale_by_rate(learning_rate),
    )

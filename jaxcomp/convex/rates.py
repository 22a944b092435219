"""Learning rates for stochastic gradient descent on strongly convex problems.

Each factory takes facts about the problem and arguments of its own, and returns a
function from the step (which may be traced) to the learning rate.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Positive, Range

Factor = Annotated[float, Range(above=0, most=1)]
Rate = Callable[[ArrayLike], jax.Array]  # step, from 0 -> float32


class Facts(NamedTuple):
    """What a learning rate may depend on."""

    regulariser: float  # lam
    steps_per_epoch: int


def constant(facts: Facts, rate: Positive) -> Rate:
    """The same rate at each step.

    Example:
      >>> float(constant(Facts(regulariser=0.1, steps_per_epoch=10), rate=0.5)(7))
      0.5
    """
    return lambda step: jnp.float32(rate)


def epoch_decay(facts: Facts, rate: Positive, factor: Factor = 0.9) -> Rate:
    """A rate that is multiplied by a factor after each epoch: rate * factor^epoch.

    Example:
      >>> rule = epoch_decay(Facts(0.1, steps_per_epoch=10), rate=1.0, factor=0.5)
      >>> float(rule(9)), float(rule(10)), float(rule(25))
      (1.0, 0.5, 0.25)
    """
    if facts.steps_per_epoch < 1:
        raise UserError(f"an epoch has 1 step or more, not {facts.steps_per_epoch}")

    def rule(step: ArrayLike) -> jax.Array:
        epoch = jnp.asarray(step) // facts.steps_per_epoch
        return rate * jnp.float32(factor) ** epoch.astype(jnp.float32)

    return rule


def decay(facts: Facts, a: Positive = 1.0, tau: Positive = 1.0) -> Rate:
    """The decay of strongly convex problems: a / (lam (t + tau)).

    Args:
      facts: with a regulariser lam above 0.
      a: scale of the rate.
      tau: the first rate is a / (lam tau), so tau has to be large enough for this rate
        to be stable. If k of d elements are sent, a memory keeps an element for about
        d / k steps, and tau should be at least of that order.

    Example:
      >>> float(decay(Facts(0.5, steps_per_epoch=10), a=2, tau=4)(4))
      0.5

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """
    scale = a / _strong(facts)
    return lambda step: scale / (_real(step) + tau)


def bottou(facts: Facts, rate: Positive) -> Rate:
    """A decay that starts from a given rate: rate / (1 + rate lam t).

    Example:
      >>> float(bottou(Facts(0.5, steps_per_epoch=10), rate=2.0)(3))
      0.5

    References:
      Bottou, Stochastic Gradient Descent Tricks, Neural Networks: Tricks of the Trade,
      2012.
    """
    slowing = rate * _strong(facts)
    return lambda step: rate / (1 + slowing * _real(step))


REGISTRY: dict[str, Callable[..., Rate]] = {
    "bottou": bottou,
    "constant": constant,
    "decay": decay,
    "epoch_decay": epoch_decay,
}


def _strong(facts: Facts) -> float:
    if not facts.regulariser > 0:
        raise UserError(
            f"this rate divides by the regulariser, which is {facts.regulariser}: "
            "take constant or epoch_decay, or a regulariser above 0"
        )
    return facts.regulariser


def _real(step: ArrayLike) -> jax.Array:
    """A step count as float32, whatever type a caller counts in."""
    return jnp.asarray(step).astype(jnp.float32)

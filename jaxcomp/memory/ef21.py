"""EF21: send how far the gradient is from what all believe it to be."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Averaged, Exchange, PerWorker, State, Tree, no_bound
from jaxcomp.memory._common import (
    Factor,
    check_contraction,
    check_keeps,
    kept_zeros,
)
from jaxcomp.memory.local_momentum import local_momentum
from jaxcomp.specs import SpecError, method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["Ef21State", "ef21", "ef21_momentum"]


class Ef21State(NamedTuple):
    """State of `ef21`."""

    estimate: PerWorker  # h_i: what all know of this worker's gradient
    mean: Tree  # of all estimates, the same on all workers
    exchange: State


@method(given=1)
def ef21(name: str, exchange: Exchange, allow: bool = False) -> Exchange:
    """Send c_i = C(g_i - h_i), h_i <- h_i + c_i; the result is the mean of all h_i.

    Nothing piles up: what is not sent is not owed. If g_i stands still, h_i goes to it
    as (1 - delta)^t, so that the step vanishes at the optimum even where the workers'
    gradients differ there. Needs a compressor with a contraction: an unbiased one of
    large variance makes h_i run away.

    Args:
      exchange: any lawful exchange that holds nothing back itself.
      allow: take a compressor without a contraction all the same.

    References:
      Richtarik et al., EF21: A New, Simpler, Theoretically Better, and Practically
      Faster Error Feedback, arXiv:2106.05203, 2021.
    """
    return _follow(exchange, name, allow)


def _follow(exchange: Exchange, name: str, allow: bool) -> Exchange:
    """`ef21` under a name."""
    check_keeps(exchange)
    if exchange.held is not None:
        message = (
            f"{exchange.name!r} keeps an error of its own, which ef21 must not have"
        )
        raise SpecError(message)

    def init(tree: Tree) -> Ef21State:
        zeros = kept_zeros(tree)
        inner = exchange.init(zeros.value)
        if not allow:
            check_contraction(exchange, zeros.value, name)
        return Ef21State(zeros, zeros.value, inner)

    def average(tree: Tree, state: Ef21State, key: Array) -> Averaged:
        gradient = widen(tree)
        distance = jax.tree.map(jnp.subtract, gradient, state.estimate.value)
        step = exchange.average(distance, state.exchange, key)
        estimate = jax.tree.map(jnp.add, state.estimate.value, step.sent)
        mean = jax.tree.map(jnp.add, state.mean, step.mean)
        info = step.info._replace(residual_norm=step.info.unsent_norm)
        new = Ef21State(PerWorker(estimate), mean, step.state)
        return Averaged(cast_like(mean, spec_of(tree)), estimate, new, info)

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average,
        contraction=no_bound,
        keeper=name,
    )


@method(given=1)
def ef21_momentum(
    name: str, exchange: Exchange, eta: Factor = 0.1, allow: bool = False
) -> Exchange:
    """EF21 of a running mean of gradients: v_i <- (1 - eta) v_i + eta g_i.

    The same as `local_momentum(beta=1 - eta) | ef21`. The running mean takes out the
    noise of small batches, which EF21 alone would try to follow. The optimiser after it
    has no momentum.

    Args:
      exchange: as in `ef21`.
      eta: weight of the new gradient, in [0, 1].
      allow: as in `ef21`.

    References:
      Fatkhullin et al., Momentum Provably Improves Error Feedback!, arXiv:2305.15155,
      2023.
    """
    averaged = local_momentum(_follow(exchange, name, allow), beta=1 - eta)
    return averaged._replace(
        name=f"{name}: {exchange.name}",
        keeper=name,
        momentum=averaged.momentum and name,
    )

"""Local momentum: each worker sends its own running mean of gradients."""

from typing import NamedTuple

import jax

from jaxcomp.core import types
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import Factor, wrapped


@types.averaged_on_resize
class MomentumState(NamedTuple):
    """State of `local_momentum`."""

    momentum: PerWorker  # m
    exchange: State


@method("beta", given=1)
def local_momentum(
    name: str, exchange: Exchange, beta: Factor = 0.9, blend: Factor | None = None
) -> Exchange:
    """Send the momentum m <- beta m + (1 - beta) g instead of the gradient g.

    What is not sent is lost; `local_momentum | error_feedback` keeps it. With
    majority_vote this method is signum. With `blend`, blend m + (1 - blend) g is sent,
    with the m of the step before. With blend=0.9, beta=0.99 and signs this is
    distributed Lion. The optimiser after it must not have a momentum of its own:
    `sgd(momentum=0)`.

    Args:
      exchange: any exchange that does not add momentum itself.
      beta: factor on the old momentum, in [0, 1].
      blend: factor on the old momentum in what is sent; None sends the new momentum.

    References:
      Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems,
      arXiv:1802.04434, 2018 (signum). Liu et al., Communication Efficient Distributed
      Training with Distributed Lion, arXiv:2404.00438, 2024.
    """

    def average(gradient: Tree, state: MomentumState, key: Array) -> Averaged:
        old = state.momentum.value
        momentum = blended(old, gradient, beta)
        given = momentum if blend is None else blended(old, gradient, blend)
        step = exchange.average(given, state.exchange, key)
        return step._replace(state=MomentumState(PerWorker(momentum), step.state))

    return wrapped(
        name,
        exchange,
        lambda zeros, inner: MomentumState(PerWorker(zeros), inner),
        average,
        keeps=False,
        momentum=beta > 0 or bool(blend),
        contraction=types.no_bound,  # the momentum may be far from the gradient
    )


def blended(momentum: Tree, gradient: Tree, weight: float) -> Tree:
    """weight * momentum + (1 - weight) * gradient."""
    return jax.tree.map(lambda m, g: weight * m + (1 - weight) * g, momentum, gradient)

"""Local momentum: each worker sends its own running mean of gradients."""

from typing import NamedTuple

import jax

from jaxcomp.base import Array, Averaged, Exchange, PerWorker, State, Tree, no_bound
from jaxcomp.memory._common import Factor, check_momentum, held_with, kept_zeros
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["MomentumState", "local_momentum"]


class MomentumState(NamedTuple):
    """State of `local_momentum`."""

    momentum: PerWorker
    exchange: State


@method("beta", given=1)
def local_momentum(
    name: str, exchange: Exchange, beta: Factor = 0.9, blend: Factor | None = None
) -> Exchange:
    """Send from m <- beta m + (1 - beta) g instead of from g.

    Keeps nothing of what is not sent; `local_momentum | error_feedback` does. With
    majority_vote it is signum. With `blend` what is sent is blend m + (1 - blend) g of
    the m before this step: with beta=0.99, blend=0.9 and signs it is distributed Lion.
    The optimiser after it has no momentum: `sgd(momentum=0)`.

    Args:
      exchange: any exchange without a momentum of its own.
      beta: factor on the old momentum, in [0, 1].
      blend: weight of the old momentum in what is sent; None sends the new momentum.

    References:
      Bernstein et al., signSGD, arXiv:1802.04434, 2018 (signum). Liu et al.,
      Communication Efficient Distributed Training with Distributed Lion,
      arXiv:2404.00438, 2024.
    """
    check_momentum(exchange)

    def mixed(momentum: Tree, gradient: Tree, weight: float) -> Tree:
        return jax.tree.map(
            lambda m, g: weight * m + (1 - weight) * g, momentum, gradient
        )

    def init(tree: Tree) -> MomentumState:
        zeros = kept_zeros(tree)
        return MomentumState(zeros, exchange.init(zeros.value))

    def average(tree: Tree, state: MomentumState, key: Array) -> Averaged:
        old, gradient = state.momentum.value, widen(tree)
        momentum = mixed(old, gradient, beta)
        given = momentum if blend is None else mixed(old, gradient, blend)
        step = exchange.average(given, state.exchange, key)
        new = MomentumState(PerWorker(momentum), step.state)
        return step._replace(mean=cast_like(step.mean, spec_of(tree)), state=new)

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average,
        held=held_with(exchange),
        contraction=no_bound,  # a momentum may be far from the gradient
        momentum=name if beta else None,
    )

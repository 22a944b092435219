"""Shared momentum: each worker adds its gradient to the momentum that all have."""

from typing import NamedTuple

import jax

from jaxcomp.base import Array, Averaged, Exchange, State, Tree, no_bound
from jaxcomp.memory._common import Factor, check_momentum, held_with, kept_zeros
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, wide_spec, widen

__all__ = ["SharedState", "shared_momentum"]


class SharedState(NamedTuple):
    """State of `shared_momentum`."""

    momentum: Tree  # m, the same on all workers
    exchange: State


@method("beta", given=1)
def shared_momentum(name: str, exchange: Exchange, beta: Factor = 0.9) -> Exchange:
    """Send beta m + (1 - beta) g_i; the mean of what arrives is the next m.

    The first moment of Adam, compressed: `shared_momentum | error_feedback` before the
    optimiser `one_bit_adam` is 1-bit Adam. A momentum changes little from step to step,
    so that what compression takes from it comes back soon.

    Args:
      exchange: any exchange without a momentum of its own.
      beta: factor on the old momentum, in [0, 1].

    References:
      Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's
      Convergence Speed, arXiv:2102.02888, 2021.
    """
    check_momentum(exchange)

    def init(tree: Tree) -> SharedState:
        zeros = kept_zeros(tree).value
        return SharedState(zeros, exchange.init(zeros))

    def average(tree: Tree, state: SharedState, key: Array) -> Averaged:
        given = jax.tree.map(
            lambda m, g: beta * m + (1 - beta) * g, state.momentum, widen(tree)
        )
        step = exchange.average(given, state.exchange, key)
        new = SharedState(cast_like(step.mean, wide_spec(spec_of(tree))), step.state)
        return step._replace(mean=cast_like(step.mean, spec_of(tree)), state=new)

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average,
        held=held_with(exchange),
        contraction=no_bound,  # a momentum may be far from the gradient
        momentum=name if beta else None,
    )

"""Shared momentum: each worker adds its gradient to the momentum that all share."""

from typing import NamedTuple

from jaxcomp.core.specs import method
from jaxcomp.core.trees import cast_like
from jaxcomp.core.types import Array, Averaged, Exchange, State, Tree, no_bound
from jaxcomp.memory._common import Factor, wrapped
from jaxcomp.memory.local_momentum import blended


class SharedState(NamedTuple):
    """State of `shared_momentum`."""

    momentum: Tree  # m, the same on all workers
    exchange: State


@method("beta", given=1)
def shared_momentum(name: str, exchange: Exchange, beta: Factor = 0.9) -> Exchange:
    """Send beta m + (1 - beta) g_i; the mean of what arrives is the next m.

    This is the compressed first moment of Adam. `shared_momentum | error_feedback`,
    followed by the optimiser `one_bit_adam`, is 1-bit Adam. The momentum changes little
    from step to step, so error feedback soon makes up for what compression loses of it.

    Args:
      exchange: any exchange that does not add momentum itself.
      beta: factor on the old momentum, in [0, 1].

    References:
      Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's
      Convergence Speed, arXiv:2102.02888, 2021.
    """

    def average(gradient: Tree, state: SharedState, key: Array) -> Averaged:
        given = blended(state.momentum, gradient, beta)
        step = exchange.average(given, state.exchange, key)
        new = SharedState(cast_like(step.mean, gradient), step.state)
        return step._replace(state=new)

    return wrapped(
        name,
        exchange,
        SharedState,
        average,
        keeps=False,
        momentum=beta > 0,
        contraction=no_bound,  # the momentum may be far from the gradient
    )

"""EF21: send the difference of the gradient and an estimate that all workers know."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core import types
from jaxcomp.core.specs import SpecError, method
from jaxcomp.core.types import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import Factor, wrapped
from jaxcomp.memory.local_momentum import local_momentum


@types.averaged_on_resize
class Ef21State(NamedTuple):
    """State of `ef21`."""

    estimate: PerWorker  # h_i, the estimate of this worker's gradient
    mean: Tree  # the mean of all h_i, the same on all workers
    exchange: State


@method(given=1)
def ef21(name: str, exchange: Exchange, allow: bool = False) -> Exchange:
    """Send c_i = C(g_i - h_i), h_i <- h_i + c_i; the result is the mean of all h_i.

    Unlike in error feedback, no residual is added up. If g_i does not change, |g_i -
    h_i|^2 decreases as (1 - delta)^t. So the step becomes zero at the optimum even if
    the workers' gradients differ there. The compressor has to be a contraction; with an
    unbiased one of large variance h_i diverges.

    Args:
      exchange: any exchange that holds nothing back itself, and where the mean over
        workers of `sent` equals the mean.
      allow: accept a compressor that is not a contraction.

    References:
      Richtarik et al., EF21: A New, Simpler, Theoretically Better, and Practically
      Faster Error Feedback, arXiv:2106.05203, 2021.
    """
    return _follow(exchange, name, allow)


def _follow(exchange: Exchange, name: str, allow: bool) -> Exchange:
    """`ef21` with another name."""

    def average(gradient: Tree, state: Ef21State, key: Array) -> Averaged:
        distance = jax.tree.map(jnp.subtract, gradient, state.estimate.value)
        step = exchange.average(distance, state.exchange, key)
        estimate = jax.tree.map(jnp.add, state.estimate.value, step.sent)
        mean = jax.tree.map(jnp.add, state.mean, step.mean)
        new = Ef21State(PerWorker(estimate), mean, step.state)
        return Averaged(mean, estimate, new, step.info)

    memory = wrapped(
        name,
        exchange,
        lambda zeros, inner: Ef21State(PerWorker(zeros), zeros, inner),
        average,
        keeps=True,
        allow=allow,
        contraction=types.no_bound,
    )
    # Only now, because `wrapped` has a better message for a memory behind a memory.
    if exchange.held is not None:
        message = (
            f"{exchange.name!r} keeps an error of its own, which ef21 must not have"
        )
        raise SpecError(message)
    return memory


@method(given=1)
def ef21_momentum(
    name: str, exchange: Exchange, eta: Factor = 0.1, allow: bool = False
) -> Exchange:
    """EF21 of a running mean of gradients, v_i <- (1 - eta) v_i + eta g_i.

    This is the same as `local_momentum(beta=1 - eta) | ef21`. The running mean reduces
    the noise of small batches, which EF21 alone would try to follow. The optimiser
    after it must not have a momentum of its own.

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

"""Signum: workers vote on the sign of their momenta."""

import optax

from jaxcomp.base import Exchange
from jaxcomp.memory import local_momentum
from jaxcomp.optimizers._common import Rate, check_bare, step_along

__all__ = ["signum"]


def signum(
    learning_rate: Rate,
    exchange: Exchange,
    beta: float = 0.9,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Every coordinate moves by the rate, the way in which most momenta point.

        m <- beta m + (1 - beta) g,  w <- w - rate (vote of sign(m) + weight_decay w)

    g is a worker's gradient and m its own. A step has the length of the rate in each
    coordinate: take a small one.

    Args:
      learning_rate: a number or a schedule.
      exchange: without a memory: `majority_vote`, or `gather` of plain signs, which
        takes their mean.
      beta: factor on the old momentum, in [0, 1].
      weight_decay: added after the vote, where it costs no bits.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxcomp
      >>> vote = jaxcomp.make_exchange("majority_vote", memory="none")
      >>> tx = signum(0.5, vote, seed=0)
      >>> state = tx.init(jnp.zeros(2))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0, -3.0], [4.0, -2.0], [-9.0, 2.0]])  # three workers
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-0.5,  0.5], dtype=float32)

    References:
      Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems,
      arXiv:1802.04434, 2018.
    """
    check_bare(exchange, "signum")
    return step_along(local_momentum(exchange, beta), learning_rate, weight_decay, seed)

"""Distributed Lion: workers vote on the sign of a blend of momentum and gradient."""

import optax

from jaxcomp.base import Exchange
from jaxcomp.memory import local_momentum
from jaxcomp.optimizers._common import Rate, check_bare, step_along

__all__ = ["lion"]


def lion(
    learning_rate: Rate,
    exchange: Exchange,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Lion, of whose updates one bit for each coordinate crosses the workers.

        c = b1 m + (1 - b1) g,  m <- b2 m + (1 - b2) g
        w <- w - rate (vote of sign(c) + weight_decay w)

    g is a worker's gradient and m its own. With one worker it is `optax.lion`.

    Args:
      learning_rate: a number or a schedule.
      exchange: without a memory: `majority_vote`, or `gather` of plain signs, which
        takes their mean. Both are in the paper.
      b1: weight of the old momentum in what is sent, in [0, 1].
      b2: factor on the old momentum, in [0, 1].
      weight_decay: added after the vote, where it costs no bits.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxcomp
      >>> vote = jaxcomp.make_exchange("majority_vote", memory="none")
      >>> tx = lion(0.5, vote, seed=0)
      >>> state = tx.init(jnp.zeros(2))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0, -3.0], [4.0, -2.0], [-9.0, 2.0]])  # three workers
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-0.5,  0.5], dtype=float32)

    References:
      Liu et al., Communication Efficient Distributed Training with Distributed Lion,
      arXiv:2404.00438, 2024. Chen et al., Symbolic Discovery of Optimization
      Algorithms, arXiv:2302.06675, 2023.
    """
    check_bare(exchange, "lion")
    momentum = local_momentum(exchange, beta=b2, blend=b1)
    return step_along(momentum, learning_rate, weight_decay, seed)

"""Distributed Lion: workers vote on the signs of their Lion updates."""

import optax

from jaxcomp.core.types import Exchange
from jaxcomp.memory import local_momentum
from jaxcomp.transforms.optimizers._chain import Rate, check_bare, sgd_with


def lion(
    learning_rate: Rate,
    exchange: Exchange,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Lion that sends one bit for each element of its update.

        c = b1 m + (1 - b1) g,  m <- b2 m + (1 - b2) g
        w <- w - rate (vote of sign(c) + weight_decay w)

    g is the gradient and m the momentum of one worker. With one worker this is the same
    as `optax.lion`.

    Args:
      learning_rate: a number or a schedule.
      exchange: an exchange without a memory: `majority_vote`, or `gather` of signs
        without a scale, which takes their mean. The paper has both.
      b1: factor on the old momentum in what is sent, in [0, 1].
      b2: factor on the old momentum in the new one, in [0, 1].
      weight_decay: added after the vote, because it is the same on all workers.
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
    return sgd_with(momentum, learning_rate, weight_decay, seed)

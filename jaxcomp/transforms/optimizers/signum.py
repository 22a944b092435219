"""Signum: workers vote on the signs of their momenta."""

import optax

from jaxcomp.core.types import Exchange
from jaxcomp.memory import local_momentum
from jaxcomp.transforms.optimizers._chain import Rate, check_bare, sgd_with


def signum(
    learning_rate: Rate,
    exchange: Exchange,
    beta: float = 0.9,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD that sends the signs of local momenta and takes the majority of them.

        m <- beta m + (1 - beta) g,  w <- w - rate (vote of sign(m) + weight_decay w)

    g is the gradient and m the momentum of one worker. In every step each weight moves
    by the learning rate, so the rate has to be small.

    Args:
      learning_rate: a number or a schedule.
      exchange: an exchange without a memory: `majority_vote`, or `gather` of signs
        without a scale, which takes their mean.
      beta: factor on the old momentum, in [0, 1].
      weight_decay: added after the vote, because it is the same on all workers.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxcomp
      >>> vote = jaxcomp.make_exchange("majority_vote", memory="none")
      >>> tx = signum(0.5, vote, seed=0)
      >>> state = tx.init(jnp.zeros(1))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0], [4.0], [-9.0]])  # two of three workers are positive
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-0.5], dtype=float32)

    References:
      Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems,
      arXiv:1802.04434, 2018.
    """
    check_bare(exchange, "signum")
    return sgd_with(local_momentum(exchange, beta), learning_rate, weight_decay, seed)

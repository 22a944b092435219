"""EF-SignSGD: SGD that sends signs with a scale, with error feedback."""

import optax

from jaxcomp.core.types import Exchange
from jaxcomp.memory import error_feedback
from jaxcomp.transforms.optimizers._chain import Rate, check_bare, sgd_with


def ef_signsgd(
    learning_rate: Rate,
    exchange: Exchange,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD on compressed gradients with error feedback.

        p = g + e,  c = C(p),  e <- p - c,  w <- w - rate (mean c + weight_decay w)

    g is the gradient and e the residual of one worker. In the paper e is multiplied by
    the learning rate, which is the same if the rate is constant.

    Args:
      learning_rate: a number or a schedule.
      exchange: an exchange without a memory; the paper's C is `sign`.
      weight_decay: added after the exchange, because it is the same on all workers.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxcomp
      >>> signs = jaxcomp.make_exchange("gather", "sign", memory="none")
      >>> tx = ef_signsgd(0.5, signs, seed=0)
      >>> state = tx.init(jnp.zeros(2))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0, -3.0], [4.0, 2.0]])  # two workers
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-1.25, -0.25], dtype=float32)

    References:
      Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression
      Schemes, arXiv:1901.09847, 2019.
    """
    check_bare(exchange, "ef_signsgd")
    return sgd_with(error_feedback(exchange), learning_rate, weight_decay, seed)

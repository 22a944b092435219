"""Deep Gradient Compression: SGD with momentum that sends few elements."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.types import Exchange, Tree
from jaxcomp.memory import dgc
from jaxcomp.transforms.distributed import distributed
from jaxcomp.transforms.optimizers._chain import Rate, check_bare, scale_by_rate


def dgc_sgd(
    learning_rate: Rate,
    exchange: Exchange,
    momentum: float = 0.9,
    nesterov: bool = False,
    masking: bool = True,
    clip: float | None = None,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD with local momentum, which keeps the velocities that were not sent.

        u <- m u + g,  v <- v + u,  c = C(v),  v <- v - c,  u <- 0 where c is not
        b <- m b + weight_decay w,  w <- w - rate (mean c + b)

    g is the gradient, u the momentum and v the velocity of one worker; b is the same on
    all workers. If C loses nothing, this is SGD with momentum.

    Args:
      learning_rate: a number or a schedule.
      exchange: an exchange without a memory; the paper's C is `dgc_top_k`.
      momentum: m, in [0, 1).
      nesterov: whether Nesterov momentum is used.
      masking: whether u is cleared for the elements that were sent.
      clip: clip each worker's gradient to a norm of clip / sqrt(workers).
      weight_decay: added after the exchange, with a momentum of its own.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxcomp
      >>> largest = jaxcomp.make_exchange(compressor="top_k(keep=0.5)", memory="none")
      >>> tx = dgc_sgd(0.5, largest, seed=0)
      >>> state = tx.init(jnp.zeros(2))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0, -3.0], [4.0, 2.0]])  # two workers
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-1.  ,  0.75], dtype=float32)

    References:
      Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for
      Distributed Training, arXiv:1712.01887, 2018.
    """
    check_bare(exchange, "dgc_sgd")
    local = dgc(exchange, momentum, nesterov, masking, clip)
    decay = add_decayed_momentum(weight_decay, momentum, nesterov)
    return optax.chain(
        distributed(local, seed),
        decay if weight_decay else optax.identity(),
        scale_by_rate(learning_rate),
    )


def add_decayed_momentum(
    weight_decay: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    mask: Callable[[Tree], Tree] | None = None,
) -> optax.GradientTransformation:
    """Add weight decay that has a momentum of its own.

    b <- m b + weight_decay w, step = update + b. The mean that memory `dgc` returns
    already has the momentum of the gradients. Weight decay is the same on all workers,
    so it is not sent. The sum is the step that SGD with momentum would take.

    Args:
      weight_decay: factor on the weights.
      momentum: m, the momentum of the memory.
      nesterov: use Nesterov momentum: step = update + m b + weight_decay w.
      mask: function from the weights to whether each of them decays; default: all.

    Example:
      >>> link = add_decayed_momentum(0.5)
      >>> state = link.init(jnp.ones(1))
      >>> for _ in range(2):
      ...     step, state = link.update(jnp.ones(1), state, jnp.ones(1))
      >>> step
      Array([1.95], dtype=float32)
    """

    def pushed(buffer: Tree, decay: Tree) -> Tree:
        return jax.tree.map(lambda b, d: momentum * b + d, buffer, decay)

    def init(params: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates: Tree, state: Tree, params: Any = None) -> tuple[Tree, Tree]:
        decays = mask(params) if mask else jax.tree.map(lambda w: True, params)
        decay = jax.tree.map(
            lambda w, decays: weight_decay * decays * w, params, decays
        )
        buffer = pushed(state, decay)
        step = pushed(buffer, decay) if nesterov else buffer
        return jax.tree.map(jnp.add, updates, step), buffer

    return optax.GradientTransformation(init, update)

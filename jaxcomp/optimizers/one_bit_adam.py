"""1-bit Adam: what is compressed is the momentum; the variance stands still."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Array, Clock, Exchange, Tree, ticked
from jaxcomp.errors import UserError
from jaxcomp.exchanges import dense_step
from jaxcomp.link_state import DistributedState
from jaxcomp.memory import error_feedback, shared_momentum
from jaxcomp.optimizers._common import Rate, check_bare, decay_by, scale_by_rate
from jaxcomp.transform import distributed

__all__ = ["OneBitAdamState", "one_bit_adam", "scale_by_one_bit_adam"]


def one_bit_adam(
    learning_rate: Rate,
    exchange: Exchange,
    dense_steps: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam in dense first steps; then its momentum is compressed, its variance frozen.

        p = b1 m + (1 - b1) g + e,  c = C(p),  e <- p - c,  m <- mean c
        v <- b2 v + (1 - b2) (mean g)^2 in the dense steps, whose C loses nothing
        w <- w - rate (m / (sqrt(v) + eps) + weight_decay w)

    g is a worker's gradient and e its own; m and v are everybody's, and are divided by
    1 - b^t as in Adam. The compiled step holds both ways and takes one of them:
    `jaxcomp.wire.collective_bytes` counts both.

    Args:
      learning_rate: a number or a schedule.
      exchange: without a memory; the paper's C is `sign`, its exchange `two_phase`.
      dense_steps: first steps, at which everything is sent; in the paper some 15 to
        25 % of the run.
      b1: factor on the old momentum, in [0, 1).
      b2: factor on the old variance, in [0, 1).
      eps: added to its root.
      weight_decay: decoupled, as in AdamW.
      seed: as in `jaxcomp.distributed`.

    Example:
      >>> import jaxcomp
      >>> signs = jaxcomp.make_exchange("gather", "sign", memory="none")
      >>> tx = one_bit_adam(0.5, signs, dense_steps=100, seed=0)
      >>> state = tx.init(jnp.zeros(2))
      >>> step = lambda g: tx.update(g, state)[0]
      >>> grads = jnp.array([[1.0, -3.0], [4.0, 2.0]])  # two workers
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads).round(3)
      Array([-0.5,  0.5], dtype=float32)

    References:
      Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's
      Convergence Speed, arXiv:2102.02888, 2021.
    """
    check_bare(exchange, "one_bit_adam")

    def with_memory(inner: Exchange) -> Exchange:
        return shared_momentum(error_feedback(inner), b1)

    dense = distributed(with_memory(dense_step(exchange)), seed)
    compressed = distributed(with_memory(exchange), seed)

    def update(
        updates: Tree, state: Any, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, DistributedState]:
        return jax.lax.cond(
            state.step < dense_steps,
            lambda: dense.update(updates, state, params, **extra),
            lambda: compressed.update(updates, state, params, **extra),
        )

    return optax.chain(
        optax.GradientTransformationExtraArgs(compressed.init, update),
        scale_by_one_bit_adam(dense_steps, b1, b2, eps),
        decay_by(weight_decay),
        scale_by_rate(learning_rate),
    )


class OneBitAdamState(NamedTuple):
    """State of `scale_by_one_bit_adam`."""

    clock: Clock
    momentum: Tree  # what arrived last
    variance: Tree
    arrived: Array  # [] int32: momenta so far
    learnt: Array  # [] int32: gradients that the variance has seen


def scale_by_one_bit_adam(
    dense_steps: int, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Divide the momentum that memory `shared_momentum` makes by a variance.

    In the dense first steps the gradient follows from two momenta, g = (m - b1 m') /
    (1 - b1), and the variance from it as in Adam. Then it is frozen: a compressed
    gradient has no use for it. It learns nothing from a dense step that is not applied;
    if none of them is, no later step is finite.

    Args:
      dense_steps: number of the first steps, at which everything was sent.
      b1: the `beta` of the memory.
      b2: factor on the old variance.
      eps: added to its root.

    Example:
      >>> link = scale_by_one_bit_adam(dense_steps=100)
      >>> state = link.init(jnp.zeros(2))
      >>> momentum = 0.1 * jnp.array([2.5, -0.5])  # of the first gradient
      >>> link.update(momentum, state)[0].round(3)
      Array([ 1., -1.], dtype=float32)
    """
    for name, factor in (("b1", b1), ("b2", b2)):
        if not 0 <= factor < 1:
            raise UserError(f"{name} is a factor in [0, 1), not {factor!r}")
    if dense_steps < 1:
        message = (
            "learns its variance in dense first steps: dense_steps is at least 1, not "
            f"{dense_steps!r}"
        )
        raise UserError(message)

    def init(params: Tree) -> OneBitAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        none = jnp.int32(0)
        return OneBitAdamState(Clock(none), zeros, zeros, arrived=none, learnt=none)

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Any]:
        learns = state.clock.step < dense_steps
        arrived, learnt = state.arrived + 1, state.learnt + learns.astype(jnp.int32)

        def new_variance(v: Array, m: Array, old: Array) -> Array:
            gradient = (m - b1 * old) / (1 - b1)
            return jnp.where(learns, b2 * v + (1 - b2) * jnp.square(gradient), v)

        variance = jax.tree.map(new_variance, state.variance, updates, state.momentum)
        # What the zeros at the start take from both running means.
        m_share = 1 - b1 ** arrived.astype(jnp.float32)
        v_share = 1 - b2 ** learnt.astype(jnp.float32)

        def direction(m: Array, v: Array) -> Array:
            m, v = m / m_share.astype(m.dtype), v / v_share.astype(v.dtype)
            return m / (jnp.sqrt(v) + eps)

        new = jax.tree.map(direction, updates, variance)
        clock = ticked(state.clock)
        return new, OneBitAdamState(clock, updates, variance, arrived, learnt)

    return optax.GradientTransformation(init, update)

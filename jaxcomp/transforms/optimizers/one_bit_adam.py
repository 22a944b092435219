"""1-bit Adam: Adam that compresses the momentum while the variance is frozen."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.errors import UserError
from jaxcomp.core.trees import cast_like, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Clock, Exchange, Tree, counted, ticked
from jaxcomp.exchanges import dense_step
from jaxcomp.memory import error_feedback, shared_momentum
from jaxcomp.transforms.distributed import DistributedState, distributed
from jaxcomp.transforms.optimizers._chain import (
    Rate,
    check_bare,
    decay_by,
    scale_by_rate,
)


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
    """Adam whose momentum is compressed and whose variance is frozen after some steps.

        p = b1 m + (1 - b1) g + e,  c = C(p),  e <- p - c,  m <- mean c
        v <- b2 v + (1 - b2) (mean g)^2 in the dense steps, where C loses nothing
        w <- w - rate (m / (sqrt(v) + eps) + weight_decay w)

    g is the gradient and e the residual of one worker; m and v are the same on all
    workers, and their biases are corrected as in Adam. The compiled step contains both
    the dense and the compressed exchange, and `jaxcomp.wire.collective_bytes` counts
    both.

    Args:
      learning_rate: a number or a schedule.
      exchange: an exchange without a memory; the paper has `two_phase` with `sign`.
      dense_steps: number of first steps in which everything is sent; in the paper about
        15 to 25 % of the run.
      b1: factor on the old momentum, in [0, 1).
      b2: factor on the old variance, in [0, 1).
      eps: added to the root of the variance.
      weight_decay: decoupled weight decay, as in AdamW.
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
    momentum: Tree  # of the last step
    variance: Tree
    arrived: Array  # [] int32: number of momenta so far
    learnt: Array  # [] int32: number of gradients in the variance


def scale_by_one_bit_adam(
    dense_steps: int, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Divide the momentum from memory `shared_momentum` by the root of a variance.

    In the dense first steps the gradient is computed from two successive momenta,
    g = (m - b1 m') / (1 - b1), and the variance from the gradient as in Adam. After
    these steps the variance is frozen, because a compressed gradient would distort it.
    A dense step that is not applied does not change the variance. If no dense step is
    applied, the variance stays zero and later steps are not finite.

    An element whose gradient was zero in all dense steps has a frozen variance of zero,
    and a compressor may send something for a zero momentum. So such an element does not
    move. Both moments are in at least float32, where squares of small gradients are not
    zero.

    Args:
      dense_steps: number of first steps in which everything was sent.
      b1: `beta` of the memory.
      b2: factor on the old variance.
      eps: added to the root of the variance.

    Example:
      >>> link = scale_by_one_bit_adam(dense_steps=100)
      >>> state = link.init(jnp.zeros(2))
      >>> momentum = 0.1 * jnp.array([2.5, -0.5])  # after one gradient
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
        zeros = zeros_like_spec(wide_spec(params))
        zero = jnp.int32(0)
        return OneBitAdamState(Clock(zero), zeros, zeros, arrived=zero, learnt=zero)

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Any]:
        learns = state.clock.step < dense_steps
        arrived = counted(state.arrived)
        learnt = state.learnt + learns.astype(jnp.int32)
        momentum = widen(updates)

        def new_variance(v: Array, m: Array, old: Array) -> Array:
            gradient = (m - b1 * old) / (1 - b1)
            return jnp.where(learns, b2 * v + (1 - b2) * jnp.square(gradient), v)

        variance = jax.tree.map(new_variance, state.variance, momentum, state.momentum)
        # Adam's bias corrections, as both running means start with zeros.
        m_share = 1 - b1 ** arrived.astype(jnp.float32)
        v_share = 1 - b2 ** learnt.astype(jnp.float32)

        def direction(m: Array, v: Array) -> Array:
            m, v = m / m_share.astype(m.dtype), v / v_share.astype(v.dtype)
            # Infinity, as 0 in place of the quotient would hide a NaN.
            return m / jnp.where(v == 0, jnp.inf, jnp.sqrt(v) + eps)

        new = cast_like(jax.tree.map(direction, momentum, variance), updates)
        clock = ticked(state.clock)
        return new, OneBitAdamState(clock, momentum, variance, arrived, learnt)

    return optax.GradientTransformation(init, update)

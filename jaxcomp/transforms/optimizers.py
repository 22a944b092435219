"""Optimisers for any optax chain whose workers exchange compressed updates.

    tx = optax.chain(optax.clip_by_global_norm(1.0), signum(1e-3, exchange, seed=0))

Each of them is an optax transformation. It takes an exchange without a memory and adds
the momentum and the memory of its method. The step has to be mapped by `jaxcomp.pmap`
or `jaxcomp.shard_map`. If gradients are averaged before the chain, by `jaxcomp.pmean`,
the chain needs only `add_decayed_momentum` or `scale_by_one_bit_adam`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.errors import UserError
from jaxcomp.core.trees import cast_like, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Array, Clock, Exchange, Tree, counted, ticked
from jaxcomp.exchanges import dense_step
from jaxcomp.memory import dgc, error_feedback, local_momentum, shared_momentum
from jaxcomp.transforms.distributed import DistributedState, distributed

Rate = float | optax.Schedule


def _check_bare(exchange: Exchange, name: str) -> None:
    """Refuse an exchange that has a memory, because the optimiser adds its own.

    Args:
      exchange: from `make_exchange`.
      name: name of the optimiser.

    Raises:
      TypeError: this is not an exchange.
      UserError: the exchange has a memory.
    """
    if not isinstance(exchange, Exchange):
        message = f"{name} takes an Exchange from make_exchange, not {exchange!r}"
        raise TypeError(message)
    if exchange.keeper or exchange.momentum:
        message = (
            f"{name} puts its own memory around the exchange, and {exchange.name!r} "
            "has one: make_exchange(..., memory='none')"
        )
        raise UserError(message)


def scale_by_rate(rate: Rate) -> optax.GradientTransformation:
    """Multiply updates by minus the learning rate of the run's current step.

    `optax.scale_by_learning_rate` counts only the steps that are applied. If some are
    skipped, it follows another schedule than the rest of the run.

    Args:
      rate: a number, or a schedule: number of the step -> learning rate.

    Example:
      >>> link = scale_by_rate(lambda step: 0.5**step)
      >>> update, clock = link.update(jnp.float32(3), Clock(jnp.int32(1)))
      >>> float(update), int(clock.step)
      (-1.5, 2)
    """
    if isinstance(rate, int | float) and not rate >= 0:
        raise UserError(f"a rate is a number from 0 or a schedule, not {rate!r}")

    def init(params: Tree) -> Clock:
        return Clock(jnp.int32(0))

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Clock]:
        factor = -jnp.asarray(rate(state.step) if callable(rate) else rate)
        scaled = jax.tree.map(lambda u: factor.astype(u.dtype) * u, updates)
        return scaled, ticked(state)

    return optax.GradientTransformation(init, update)


def _sgd_with(
    exchange: Exchange, learning_rate: Rate, weight_decay: float, seed: int | None
) -> optax.GradientTransformationExtraArgs:
    """The optimiser w <- w - rate (mean of the exchange + weight_decay w)."""
    # Without a decay it needs no parameters.
    decay = optax.add_decayed_weights(weight_decay)
    links = distributed(exchange, seed), decay if weight_decay else optax.identity()
    return optax.chain(*links, scale_by_rate(learning_rate))


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
      >>> import jaxcomp
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
    _check_bare(exchange, "dgc_sgd")
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
      >>> import jaxcomp
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
    _check_bare(exchange, "ef_signsgd")
    return _sgd_with(error_feedback(exchange), learning_rate, weight_decay, seed)


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
      >>> import jaxcomp
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
    _check_bare(exchange, "lion")
    momentum = local_momentum(exchange, beta=b2, blend=b1)
    return _sgd_with(momentum, learning_rate, weight_decay, seed)


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
      >>> import jaxcomp
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
    _check_bare(exchange, "signum")
    return _sgd_with(local_momentum(exchange, beta), learning_rate, weight_decay, seed)


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
    _check_bare(exchange, "one_bit_adam")

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
        optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity(),
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

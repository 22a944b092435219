"""From a config to one optax chain: the whole method, read left to right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp import memory
from jaxcomp.base import Array, Clock, Exchange, Mixer, Tree, ticked
from jaxcomp.errors import UserError
from jaxcomp.specs import Call, argument, build, parse
from jaxcomp.training.momenta import check_one_momentum, of_memory
from jaxcomp.training.stages import Stage
from jaxcomp.transform import distributed, mixing

__all__ = ["REGISTRY", "Setting", "make_chain"]


class Setting(NamedTuple):
    """What every optimiser is given by the run."""

    rate: optax.Schedule
    weight_decay: float = 0.0
    dense_steps: int = 0  # first steps at which everything is sent
    given: Call | None = None  # the memory that gives a momentum, if one does


def scale_by_rate(rate: optax.Schedule) -> optax.GradientTransformation:
    """Take a step against the gradient, as long as the rate at the run's step says.

    optax counts the steps that it is asked for; where one is not applied its count
    stands still, and it would follow another schedule than the rest of the run.

    Example:
        >>> link = scale_by_rate(lambda step: 0.5**step)
        >>> update, clock = link.update(jnp.float32(3), Clock(jnp.int32(1)))
        >>> float(update), int(clock.step)
        (-1.5, 2)
    """

    def init(params: Tree) -> Clock:
        return Clock(jnp.int32(0))

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Clock]:
        factor = -jnp.asarray(rate(state.step))
        scaled = jax.tree.map(lambda u: factor.astype(u.dtype) * u, updates)
        return scaled, ticked(state)

    return optax.GradientTransformation(init, update)


def sgd(
    setting: Setting, momentum: float = 0.9, nesterov: bool = True
) -> optax.GradientTransformation:
    """SGD with (Nesterov) momentum on the mean gradient."""
    return optax.chain(
        optax.add_decayed_weights(setting.weight_decay),
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        scale_by_rate(setting.rate),
    )


def adam(
    setting: Setting, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam on the mean gradient."""
    return optax.chain(
        optax.add_decayed_weights(setting.weight_decay),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        scale_by_rate(setting.rate),
    )


def dgc_sgd(
    setting: Setting, momentum: float = 0.9, nesterov: bool = False
) -> optax.GradientTransformation:
    """SGD after memory `dgc`: the momentum sees the weight decay and nothing else.

    b <- m b + wd w, step = b + mean. The mean carries the momentum already, and weight
    decay needs no sending: it is the same on every worker. Together both give what SGD
    with momentum gives to their sum.

    Args:
      setting: rate and weight decay.
      momentum: m, that of the memory.
      nesterov: step = m b + wd w + mean.
    """

    def init(params: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates: Tree, state: Tree, params: Any = None) -> tuple[Tree, Tree]:
        decay = jax.tree.map(lambda w: setting.weight_decay * w, params)
        buffer = jax.tree.map(lambda b, d: momentum * b + d, state, decay)
        step = buffer
        if nesterov:
            step = jax.tree.map(lambda b, d: momentum * b + d, buffer, decay)
        return jax.tree.map(jnp.add, updates, step), buffer

    return optax.chain(
        optax.GradientTransformation(init, update),
        scale_by_rate(setting.rate),
    )


class OneBitAdamState(NamedTuple):
    """State of `one_bit_adam`."""

    clock: Clock
    momentum: Tree  # what arrived last
    variance: Tree
    arrived: Array  # [] int32: momenta so far
    learnt: Array  # [] int32: gradients that the variance has seen


def one_bit_adam(
    setting: Setting, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam of a compressed momentum, whose variance stands still after a dense warm-up.

    It divides the momentum that memory `shared_momentum` makes. In the dense first
    steps, `config.dense_for`, the gradient follows from two momenta: g = (m - beta m')
    / (1 - beta), and the variance from it as in Adam. Then it is frozen: a compressed
    gradient has no use for it. It learns nothing from a dense step that is not applied;
    if none of them is, no later step is finite. Weight decay is decoupled.

    Args:
      setting: rate, weight decay, dense steps and beta.
      b2: factor on the old variance.
      eps: added to its root.

    References:
      Tang et al., 1-bit Adam, arXiv:2102.02888, 2021.
    """
    assert setting.given is not None  # `check_one_momentum` saw to it
    beta = argument(setting.given, memory.shared_momentum, "beta", given=1)
    frozen_after = setting.dense_steps
    if beta == 1:
        raise UserError("divides by 1 - beta, and the memory has beta=1")
    if not frozen_after:
        message = (
            "learns its variance in dense first steps. Set dense_for, for example to "
            "'1 epoch'"
        )
        raise UserError(message)

    def init(params: Tree) -> OneBitAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        none = jnp.int32(0)
        return OneBitAdamState(Clock(none), zeros, zeros, arrived=none, learnt=none)

    def update(updates: Tree, state: Any, params: Any = None) -> tuple[Tree, Any]:
        learns = state.clock.step < frozen_after
        arrived, learnt = state.arrived + 1, state.learnt + learns.astype(jnp.int32)

        def new_variance(v: Array, m: Array, old: Array) -> Array:
            gradient = (m - beta * old) / (1 - beta)
            return jnp.where(learns, b2 * v + (1 - b2) * jnp.square(gradient), v)

        variance = jax.tree.map(new_variance, state.variance, updates, state.momentum)
        # What the zeros at the start take from both running means.
        m_share = 1 - beta ** arrived.astype(jnp.float32)
        v_share = 1 - b2 ** learnt.astype(jnp.float32)

        def direction(m: Array, v: Array, w: Array) -> Array:
            m, v = m / m_share.astype(m.dtype), v / v_share.astype(v.dtype)
            return m / (jnp.sqrt(v) + eps) + setting.weight_decay * w

        new = jax.tree.map(direction, updates, variance, params)
        clock = ticked(state.clock)
        return new, OneBitAdamState(clock, updates, variance, arrived, learnt)

    return optax.chain(
        optax.GradientTransformation(init, update),
        scale_by_rate(setting.rate),
    )


REGISTRY: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": adam,
    "dgc_sgd": dgc_sgd,
    "one_bit_adam": one_bit_adam,
    "sgd": sgd,
}


def make_chain(
    config: Any, stage: Stage, setting: Setting, method: Exchange | Mixer
) -> optax.GradientTransformationExtraArgs:
    """The whole method as one optax chain.

    clip (local) -> exchange -> weight decay -> optimiser, for an exchange of gradients.
    Weight decay comes after it: it is the same on every worker, so sending it, or
    keeping it in a residual, would only spend bytes on what all know.

    clip -> weight decay -> optimiser -> mixer, where each worker has its own model.

    Args:
      config: names clipping, memory and optimiser.
      stage: what is sent; all stages of a run have chains with the same state.
      setting: rate, weight decay and dense steps.
      method: of the stage.
    """
    named = parse(config.optimizer)
    given = None if isinstance(method, Mixer) else of_memory(method.momentum)
    if isinstance(named, Call) and named.name in REGISTRY:
        check_one_momentum(given, named, REGISTRY[named.name])
    setting = setting._replace(given=given)
    optimizer = build(config.optimizer, REGISTRY, "optimizer", setting)
    if isinstance(method, Mixer):
        links = [optimizer, mixing(method, program=stage.program)]
    else:
        links = [distributed(method), optimizer]
    if config.clip_norm:
        links.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return optax.with_extra_args_support(optax.chain(*links))

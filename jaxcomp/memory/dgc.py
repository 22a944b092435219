"""DGC: the momentum is local, and what is kept back is velocity, not gradient."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import (
    BelowOne,
    check_contraction,
    check_keeps,
    check_momentum,
    held_with,
    kept_zeros,
)
from jaxcomp.specs import Clip, method
from jaxcomp.trees import cast_like, clipped, spec_of, widen

__all__ = ["DgcState", "dgc"]


class DgcState(NamedTuple):
    """State of `dgc`."""

    momentum: PerWorker  # u
    velocity: PerWorker  # v: what was not sent
    exchange: State


@method(given=1)
def dgc(
    name: str,
    exchange: Exchange,
    momentum: BelowOne = 0.9,
    nesterov: bool = False,
    masking: bool = True,
    clip: Clip | None = None,
    clip_each: bool = False,
    allow: bool = False,
) -> Exchange:
    """Momentum correction: u <- m u + g, v <- v + u, send from v, v <- v - sent.

    With Nesterov momentum: u <- m (u + g), v <- v + u + g. What comes out of the
    exchange carries the momentum, so that the optimiser after it has none of its own:
    `sgd(momentum=0)`, or `dgc_sgd`, which lets weight decay through a momentum as SGD
    does. With `masking` u <- 0 where an element was chosen to be sent, which keeps a
    late one from being pushed on in an old direction. Tensors of which every element
    is sent keep their momentum: nothing of them is late. It is linear, so those that
    are sent as they are get what momentum SGD gives them, as everything does at a dense
    step.

    Args:
      exchange: any lawful exchange; masking is for sparsifiers.
      momentum: m, in [0, 1).
      nesterov: whether the momentum is Nesterov's.
      masking: whether u is cleared where an element was chosen.
      clip: the local gradient is clipped to a norm of clip / sqrt(N); None does not
        clip. The paper's rule: a sum of N gradients is about sqrt(N) longer.
      clip_each: clip every tensor by itself instead of the tree as a whole.
      allow: take a compressor without a contraction, as in `error_feedback`.

    References:
      Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for
      Distributed Training, arXiv:1712.01887, 2018.
    """
    check_keeps(exchange)
    check_momentum(exchange)

    def init(tree: Tree) -> DgcState:
        zeros = kept_zeros(tree)
        inner = exchange.init(zeros.value)
        if not allow:
            check_contraction(exchange, zeros.value, name)
        return DgcState(zeros, zeros, inner)

    def average(tree: Tree, state: DgcState, key: Array) -> Averaged:
        gradient = widen(tree)
        if clip is not None:
            limit = clip / math.sqrt(collectives.size(exchange.axis))
            gradient = clipped(gradient, limit, each=clip_each)
        u, v = state.momentum.value, state.velocity.value
        if nesterov:
            u = jax.tree.map(lambda u, g: momentum * (u + g), u, gradient)
            v = jax.tree.map(lambda v, u, g: v + u + g, v, u, gradient)
        else:
            u = jax.tree.map(lambda u, g: momentum * u + g, u, gradient)
            v = jax.tree.map(jnp.add, v, u)
        step = exchange.average(v, state.exchange, key)
        v = jax.tree.map(jnp.subtract, v, step.sent)
        if masking:
            out = step.sent if step.own_sent is None else step.own_sent
            u = _masked(u, out, exchange.chooses(spec_of(tree)))
        info = step.info._replace(residual_norm=step.info.unsent_norm)
        new = DgcState(PerWorker(u), PerWorker(v), step.state)
        mean = cast_like(step.mean, spec_of(tree))
        return step._replace(mean=mean, state=new, info=info)

    return exchange._replace(
        name=f"{name}: {exchange.name}",
        init=init,
        average=average,
        held=held_with(exchange, lambda state: state.velocity.value),
        keeper=name,
        momentum=name if momentum else None,
    )


def _masked(momentum: Tree, out: Tree, chooses: list[bool]) -> Tree:
    """Momentum of what was not chosen, and of all tensors that are sent as a whole."""
    leaves, structure = jax.tree.flatten(momentum)
    triples = zip(leaves, jax.tree.leaves(out), chooses, strict=True)
    kept = [jnp.where(x != 0, 0, u) if chosen else u for u, x, chosen in triples]
    return jax.tree.unflatten(structure, kept)

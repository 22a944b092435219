"""DGC: momentum correction, which keeps back velocities instead of gradients."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core import types
from jaxcomp.core.specs import Clip, method
from jaxcomp.core.trees import clipped, spec_of
from jaxcomp.core.types import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import BelowOne, wrapped
from jaxcomp.parallel import collectives


@types.averaged_on_resize
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

    Nesterov momentum has u <- m (u + g), v <- v + u + g. The mean already has the
    momentum, so the optimiser after it must have none: `sgd(momentum=0)`, or `dgc_sgd`,
    which applies a momentum to the weight decay alone, as SGD would. With `masking`
    u <- 0 for the elements that were sent. Otherwise an element that was kept back for
    long would move on in an old direction. Tensors that are always sent as a whole keep
    their momentum, because nothing of them is kept back; they get the same updates as
    in SGD with momentum, as do all tensors in a dense step.

    Args:
      exchange: any exchange where the mean over workers of `sent` equals the mean.
        Masking is meant for sparsifiers.
      momentum: m, in [0, 1).
      nesterov: whether Nesterov momentum is used.
      masking: whether u is cleared for the elements that were sent.
      clip: clip each worker's gradient to a norm of clip / sqrt(N); None does not clip.
        The rule is the paper's: the norm of a sum of N gradients is about sqrt(N) times
        that of one.
      clip_each: clip every tensor by itself instead of the tree as a whole.
      allow: accept a compressor that is not a contraction, as in `error_feedback`.

    References:
      Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for
      Distributed Training, arXiv:1712.01887, 2018.
    """

    def average(gradient: Tree, state: DgcState, key: Array) -> Averaged:
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
        if masking:
            u = _masked(u, exchange, step)
        new = DgcState(PerWorker(u), PerWorker(step.unsent(v)), step.state)
        return step._replace(state=new)

    return wrapped(
        name,
        exchange,
        lambda zeros, inner: DgcState(PerWorker(zeros), PerWorker(zeros), inner),
        average,
        keeps=True,
        momentum=momentum > 0,
        held=lambda state: state.velocity.value,
        allow=allow,
        whole=None if clip is None else name,
    )


def _masked(momentum: Tree, exchange: Exchange, step: Averaged) -> Tree:
    """The momentum, cleared for elements that this worker sent.

    Tensors that are always sent as a whole, or not at all, keep their momentum.
    """
    if exchange.clear is not None:
        cleared = exchange.clear(momentum, step.payload)
    else:
        out = step.sent if step.own_sent is None else step.own_sent
        cleared = jax.tree.map(lambda u, x: jnp.where(x != 0, 0, u), momentum, out)
    leaves, structure = jax.tree.flatten(momentum)
    chooses = exchange.chooses(spec_of(momentum))
    triples = zip(leaves, jax.tree.leaves(cleared), chooses, strict=True)
    kept = [new if chosen else old for old, new, chosen in triples]
    return jax.tree.unflatten(structure, kept)

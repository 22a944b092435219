"""Delayed SGD: a simulation of a server that applies one update after the other."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.coding.payloads import fuse, split
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of, widen
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, Resize, State, Tree
from jaxcomp.exchanges import figure_names, measure
from jaxcomp.mixers.gossip._neighbours import plus
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.mixers.initial_models import mean_start
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift


class DelayedState(NamedTuple):
    """State of `delayed_sgd`."""

    server: Tree  # the server's model, the same on every worker
    codec: State


def delayed_sgd(plan: Plan, graph: Topology, axis: Axis) -> Mixer:
    """Apply the updates of N workers to a server's model one after the other.

    m_i = m_(i-1) + D(C(u_i)) / N for i = 0, ..., N - 1. Worker i computes its next
    gradient on m_i, which lacks the updates of N - 1 - i other workers, as in
    asynchronous training. The next step starts from the last m. Only the delay is
    simulated: there is no server, and all messages are sent to all workers at once.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: has to be "complete", because all workers send to the server.
      axis: the mapped axis.

    References:
      Dean et al., Large Scale Distributed Deep Networks, NIPS 2012.
    """
    if graph.degree != graph.size - 1 or len(graph.rounds) > 1:
        raise SpecError(
            "delayed_sgd has one server for all workers: set the topology to "
            f"'complete', not {graph.name!r}"
        )
    codec = lift(plan)

    def init(params: Tree) -> DelayedState:
        server = mean_start(params, graph.size, axis)
        return DelayedState(server, codec.init(spec_of(params)))

    def mix(
        params: Tree, updates: Tree, state: DelayedState, key: Array, phase: int
    ) -> Mixed:
        spec, place = spec_of(updates), collectives.index(axis)
        own_key = jax.random.fold_in(key, place)
        payload, codec_state = codec.compress(updates, state.codec, own_key)
        messages = collectives.gather(fuse(payload), axis)
        share = 1 / messages.shape[0]

        def add(carry: Any, message: tuple[Array, Array]) -> tuple[Any, None]:
            server, model = carry
            turn, words = message
            arrived = codec.decompress(split(words, spec_of(payload)), server)
            server = plus(server, arrived, share)
            mine = functools.partial(jnp.where, turn == place)
            return (server, jax.tree.map(mine, server, model)), None

        turns = jnp.arange(messages.shape[0])
        start = (state.server, state.server)
        (server, model), _ = jax.lax.scan(add, start, (turns, messages))
        info = measure(updates, codec.decompress(payload, spec), codec, payload)
        new = DelayedState(server, codec_state)
        return Mixed(plus(model, widen(params), -1), new, info)

    title = f"delayed_sgd of {graph.size} workers, {codec.name}"
    figures = figure_names(codec)
    resize = (Resize(DelayedState),)
    return Mixer(title, init, mix, axis, figures=figures, simulated=True, resize=resize)

"""CHOCO-SGD whose messages travel beside the computation of the next gradient."""

from typing import NamedTuple

import jax

from jaxcomp import collectives
from jaxcomp.base import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.coding.message import fuse, split
from jaxcomp.gossip._neighbours import (
    check_contraction,
    plus,
    pull_of_neighbours,
    symmetric_round,
)
from jaxcomp.gossip._starts import first_pull
from jaxcomp.gossip._step_size import Gamma, step_sizer
from jaxcomp.gossip.topology import Topology
from jaxcomp.infos import figure_names, measure
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["OverlappedState", "choco_overlapped"]


class OverlappedState(NamedTuple):
    """State of `choco_overlapped`."""

    public: Tree  # x_hat_i, without the message that is on its way
    pull: Tree  # p_i, likewise
    outgoing: Array  # the message of the last step, to be sent in this one
    codec: State


@method("gamma", given=3)
def choco_overlapped(
    name: str,
    plan: Plan,
    graph: Topology,
    axis: Axis,
    gamma: Gamma = 0.5,
    allow: bool = False,
) -> Mixer:
    """`choco` one round late: a step mixes with the estimates of the step before.

    x_hat += D(q),  p += sum_j w_ij (D(q_j) - D(q))     messages of the last step
    x    <- x + u + gamma p
    q    =  C(x - x_hat)                                sent in the next step

    What is sent in a step is known when it begins, so that the message and the gradient
    do not wait for each other. The order of the original code.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who hears whom; symmetric.
      axis: the mapped axis.
      gamma: as in `choco`.
      allow: take a compressor without a contraction, as in `choco`.

    References:
      Koloskova, Lin, Stich and Jaggi, Decentralized Deep Learning with Arbitrary
      Communication Compression, arXiv:1907.09356, 2020.
    """
    neighbours = symmetric_round(graph, "choco_overlapped")
    codec, step_size = lift(plan), step_sizer(gamma, plan, graph)

    def init(params: Tree) -> OverlappedState:
        if not allow and gamma != "tuned":
            check_contraction(plan, params, "choco_overlapped")
        start, state = widen(params), codec.init(spec_of(params))
        # Nothing is unknown yet: a message of zeros.
        zeros = jax.tree.map(lambda x: x * 0, params)
        payload, _ = codec.compress(zeros, state, jax.random.key(0))
        pull = first_pull(params, graph, axis)
        return OverlappedState(start, pull, fuse(payload), state)

    def mix(
        params: Tree, updates: Tree, state: OverlappedState, key: Array, phase: int
    ) -> Mixed:
        spec = spec_of(params)
        payload_spec = jax.eval_shape(
            lambda x: codec.compress(x, state.codec, key)[0], spec
        )
        arrived = codec.decompress(split(state.outgoing, payload_spec), state.public)
        public = plus(state.public, arrived)
        news = pull_of_neighbours(
            codec, state.outgoing, payload_spec, arrived, neighbours, axis
        )
        pull = plus(state.pull, news)
        change = plus(widen(updates), pull, step_size(spec))

        unknown = cast_like(plus(plus(widen(params), change), public, -1), spec)
        own_key = jax.random.fold_in(key, collectives.index(axis))
        payload, codec_state = codec.compress(unknown, state.codec, own_key)
        info = measure(unknown, codec.decompress(payload, spec), codec, payload)
        info = info._replace(residual_norm=info.unsent_norm)
        new = OverlappedState(public, pull, fuse(payload), codec_state)
        return Mixed(change, new, info)

    return Mixer(
        f"{name} on {graph.name}, {codec.name}",
        init=init,
        mix=mix,
        axis=axis,
        figures=figure_names(codec),
    )

"""CHOCO-SGD whose messages travel while the next gradient is computed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.coding.payloads import fuse, split
from jaxcomp.core.specs import method
from jaxcomp.core.trees import cast_like, spec_of, widen
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, Resize, State, Tree
from jaxcomp.exchanges import measure
from jaxcomp.mixers.gossip import _neighbours as near
from jaxcomp.mixers.gossip._neighbours import Neighbours, plus
from jaxcomp.mixers.gossip._step_size import Gamma, step_sizer
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan, lift


class OverlappedState(NamedTuple):
    """State of `choco_overlapped`."""

    public: Tree  # x_hat_i, without the message that is not sent yet
    pull: Tree  # p_i, likewise
    outgoing: Array  # the message of the last step, to be sent in this one
    codec: State = ()


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

    x_hat <- x_hat + D(q)                       q: message of the last step
    p     <- p + sum_j w_ij (D(q_j) - D(q))
    x     <- x + u + gamma p                    u: the worker's own update
    q      = C(x - x_hat)                       sent in the next step

    The message of a step is known before the step begins, so that sending it and
    computing the gradient can run at the same time. The authors' code has this order.

    With another number of workers the rules of `choco` hold. The message that is not
    sent yet is dropped: x_hat does not count it, so x - x_hat still holds all of it.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who sends to whom; symmetric.
      axis: the mapped axis.
      gamma: as in `choco`.
      allow: take a compressor without a contraction, as in `choco`.

    References:
      Koloskova, Lin, Stich and Jaggi, Decentralized Deep Learning with Arbitrary
      Communication Compression, arXiv:1907.09356, 2020.
    """
    step_size = step_sizer(gamma, plan, graph)

    def start(params: Tree) -> OverlappedState:
        # The estimates are exact at first: the first message is of zeros.
        pull = near.first_pull(params, graph, axis)
        return OverlappedState(widen(params), pull, of_zeros(params))

    def of_zeros(params: Tree) -> Array:
        codec, zeros = lift(plan), jax.tree.map(lambda x: x * 0, params)
        fresh = codec.init(spec_of(params))
        return fuse(codec.compress(zeros, fresh, jax.random.key(0))[0])

    def step(
        params: Tree, updates: Tree, state: OverlappedState, neighbours: Neighbours
    ) -> Mixed:
        codec, spec = neighbours.codec, neighbours.spec
        payload_spec = jax.eval_shape(
            lambda x: neighbours.compress(x, state.codec)[0], spec
        )
        arrived = codec.decompress(split(state.outgoing, payload_spec), state.public)
        public = plus(state.public, arrived)
        news = neighbours.pull(state.outgoing, payload_spec, arrived)
        pull = plus(state.pull, news)
        change = plus(updates, pull, step_size(spec))

        unknown = cast_like(plus(plus(params, change), public, -1), spec)
        payload, codec_state = neighbours.compress(unknown, state.codec)
        info = measure(unknown, codec.decompress(payload, spec), codec, payload)
        info = info._replace(residual_norm=info.unsent_norm)
        new = OverlappedState(public, pull, fuse(payload), codec_state)
        return Mixed(change, new, info)

    def rebuild(state: OverlappedState, params: Tree, workers: int) -> OverlappedState:
        return state._replace(
            pull=near.first_pulls(state.public, graph),
            outgoing=jax.jit(jax.vmap(of_zeros))(jax.tree.map(jnp.asarray, params)),
        )

    allow = allow or gamma == "tuned"
    resize = Resize(OverlappedState, ("pull", "outgoing"), rebuild)
    mixer = near.symmetric_mixer(name, plan, graph, axis, start, step, resize, allow)
    return near.keep_rounding(mixer)

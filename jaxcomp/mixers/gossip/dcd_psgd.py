"""DCD-PSGD: a model changes only by what is sent."""

from typing import NamedTuple

import jax
import numpy as np

from jaxcomp.core.specs import method
from jaxcomp.core.trees import cast_like, wide_spec, widen, zeros_like_spec
from jaxcomp.core.types import Axis, Mixed, Mixer, Resize, State, Tree
from jaxcomp.mixers.gossip import _neighbours as near
from jaxcomp.mixers.gossip._neighbours import Neighbours, plus
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan


class DcdState(NamedTuple):
    """State of `dcd_psgd`."""

    pull: Tree  # p_i = sum_j w_ij (x_j - x_i)
    lost: Tree  # what neighbours know of x_i and its dtype could not hold
    codec: State = ()


@method(given=3)
def dcd_psgd(
    name: str, plan: Plan, graph: Topology, axis: Axis, allow: bool = False
) -> Mixer:
    """Compress each worker's change of its model, and apply what was sent of it.

    q  = C(p + u)       u: the worker's own update
    x <- x + D(q)
    p <- p + sum_j w_ij (D(q_j) - D(q))

    p = sum_j w_ij (x_j - x_i) leads from this model to the weighted mean of the
    neighbours' models. They are known exactly: a model is its start plus the sum of its
    messages, and p begins with the differences of the starts
    (`jaxcomp.mixers.initial_models`). What rounding took from x + D(q) is added in the
    next step, so that this stays true. What a message leaves out is lost. So with
    a compressor that keeps little, training diverges unless the learning rate is tiny;
    with `choco` it does not diverge.

    With another number of workers, models are averaged or copied, and p is computed
    anew from them in the new graph, as at the start.

    Args:
      plan: which tensors are compressed as one vector, and how; unbiased and precise.
      graph: who sends to whom; symmetric.
      axis: the mapped axis.
      allow: take a compressor without a contraction, although models may diverge.

    References:
      Tang et al., Communication Compression for Decentralized Training,
      arXiv:1803.06443, 2018 (algorithm 1).
    """

    def start(params: Tree) -> DcdState:
        pull = near.first_pull(params, graph, axis)
        return DcdState(pull, zeros_like_spec(wide_spec(params)))

    def step(
        params: Tree, updates: Tree, state: DcdState, neighbours: Neighbours
    ) -> Mixed:
        result = neighbours.send(plus(state.pull, updates), state.codec)
        change = plus(result.sent, state.lost)
        after = widen(cast_like(plus(params, change), neighbours.spec))
        lost = plus(change, plus(after, params, -1), -1)
        new = DcdState(plus(state.pull, result.pull), lost, result.state)
        return Mixed(change, new, result.info)

    def rebuild(state: DcdState, params: Tree, workers: int) -> DcdState:
        known = jax.tree.map(np.add, params, state.lost)
        return state._replace(pull=near.first_pulls(known, graph))

    resize = Resize(DcdState, ("pull",), rebuild)
    return near.symmetric_mixer(name, plan, graph, axis, start, step, resize, allow)

"""DCD-PSGD: models that move only by what is sent."""

from typing import NamedTuple

from jaxcomp.base import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.gossip._neighbours import (
    check_contraction,
    plus,
    send_compressed,
    symmetric_round,
)
from jaxcomp.gossip._starts import first_pull
from jaxcomp.gossip.topology import Topology
from jaxcomp.infos import figure_names
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["DcdState", "dcd_psgd"]


class DcdState(NamedTuple):
    """State of `dcd_psgd`."""

    pull: Tree  # p_i = sum_j w_ij (x_j - x_i)
    codec: State


@method(given=3)
def dcd_psgd(
    name: str, plan: Plan, graph: Topology, axis: Axis, allow: bool = False
) -> Mixer:
    """Compress the difference between two models in succession.

    q  = C(p + u)       the way to the neighbours' mean model, and the own update
    x += D(q),  p += sum_j w_ij (D(q_j) - D(q))

    The neighbours know each model exactly: it is its start, of which p knows the
    differences (`jaxcomp.starts`), and the sum of its messages. There is no
    feedback of what a message leaves out: a compressor that keeps little needs a tiny
    learning rate, or diverges. `choco` does not.

    Args:
      plan: which tensors are compressed as one vector, and how; unbiased and precise.
      graph: who hears whom; symmetric.
      axis: the mapped axis.
      allow: take a compressor without a contraction all the same: models run away.

    References:
      Tang et al., Communication Compression for Decentralized Training,
      arXiv:1803.06443, 2018 (algorithm 1).
    """
    neighbours = symmetric_round(graph, "dcd_psgd")
    codec = lift(plan)

    def init(params: Tree) -> DcdState:
        if not allow:
            check_contraction(plan, params, "dcd_psgd")
        pull = first_pull(params, graph, axis)
        return DcdState(pull, codec.init(spec_of(params)))

    def mix(
        params: Tree, updates: Tree, state: DcdState, key: Array, phase: int
    ) -> Mixed:
        change = cast_like(plus(state.pull, widen(updates)), spec_of(params))
        result = send_compressed(codec, change, state.codec, key, neighbours, axis)
        new = DcdState(plus(state.pull, result.pull), result.state)
        return Mixed(result.sent, new, result.info)

    return Mixer(
        f"{name} on {graph.name}, {codec.name}",
        init=init,
        mix=mix,
        axis=axis,
        figures=figure_names(codec),
    )

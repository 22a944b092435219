"""D-PSGD: average whole models with the neighbours, without compression."""

from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of, widen
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.mixers.gossip._neighbours import Neighbours, keep_rounding, plus
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan, lift


def d_psgd(plan: Plan, graph: Topology, axis: Axis) -> Mixer:
    """x_i <- sum_j w_ij (x_j + u_j), with u the worker's own update.

    The baseline of decentralised training: every neighbour receives the whole model.
    The graph may change with time, and need not be symmetric.

    Args:
      plan: has to compress nothing, because models that lose something at every step
        never agree. `choco` compresses.
      graph: who sends to whom.
      axis: the mapped axis.

    References:
      Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?,
      arXiv:1705.09056, 2017.
    """
    if any(compressor.name != "none" for compressor in plan.compressors):
        raise SpecError(
            f"sends whole models, and the compressor is {plan.title!r}. Set it to "
            "'none', or take choco"
        )
    codec = lift(plan)

    def mix(params: Tree, updates: Tree, state: State, key: Array, phase: int) -> Mixed:
        half, spec = plus(widen(params), widen(updates)), spec_of(params)
        neighbours = Neighbours(codec, graph.rounds[phase], axis, key, spec)
        result = neighbours.send(half, state)
        return Mixed(plus(widen(updates), result.pull), result.state, result.info)

    def init(params: Tree) -> State:
        return codec.init(spec_of(params))

    schedule = tuple(range(len(graph.rounds)))
    return keep_rounding(Mixer(f"d_psgd on {graph.name}", init, mix, axis, schedule))

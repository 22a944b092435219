"""DeepSqueeze: gossip of compressed models with error feedback."""

from typing import NamedTuple

from jaxcomp.core.specs import method
from jaxcomp.core.trees import wide_spec, zeros_like_spec
from jaxcomp.core.types import Axis, Mixed, Mixer, Resize, State, Tree
from jaxcomp.mixers.gossip import _neighbours as near
from jaxcomp.mixers.gossip._neighbours import Neighbours, plus
from jaxcomp.mixers.gossip._step_size import StepSize
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan


class SqueezeState(NamedTuple):
    """State of `deep_squeeze`."""

    error: Tree  # what the last messages left out
    codec: State = ()


@method("gamma", given=3)
def deep_squeeze(
    name: str,
    plan: Plan,
    graph: Topology,
    axis: Axis,
    gamma: StepSize = 0.1,
    allow: bool = False,
) -> Mixer:
    """Send the compressed model, and add what it lost to the next one.

    x <- x + u                  u: the worker's own update
    c  = C(x + e)
    e <- x + e - D(c)
    x <- x + gamma sum_j w_ij (D(c_j) - D(c))

    It keeps one vector of state less than `choco`. But it compresses models, not
    differences, so the error does not vanish when the models agree, and gamma has to be
    smaller.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who sends to whom; symmetric.
      axis: the mapped axis.
      gamma: consensus step size in (0, 1].
      allow: take a compressor without a contraction.

    References:
      Tang et al., DeepSqueeze: Decentralization Meets Error-Compensated Compression,
      arXiv:1907.07346, 2019.
    """

    def start(params: Tree) -> SqueezeState:
        return SqueezeState(zeros_like_spec(wide_spec(params)))

    def step(
        params: Tree, updates: Tree, state: SqueezeState, neighbours: Neighbours
    ) -> Mixed:
        given = plus(plus(params, updates), state.error)
        result = neighbours.send(given, state.codec)
        new = SqueezeState(plus(given, result.sent, -1), result.state)
        info = result.info._replace(residual_norm=result.info.unsent_norm)
        return Mixed(plus(updates, result.pull, gamma), new, info)

    resize = Resize(SqueezeState)
    mixer = near.symmetric_mixer(name, plan, graph, axis, start, step, resize, allow)
    return near.keep_rounding(mixer)

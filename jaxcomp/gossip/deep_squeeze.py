"""DeepSqueeze: gossip of compressed models with error feedback."""

from typing import NamedTuple

from jaxcomp.base import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.gossip._neighbours import (
    check_contraction,
    plus,
    send_compressed,
    symmetric_round,
)
from jaxcomp.gossip._step_size import StepSize
from jaxcomp.gossip.topology import Topology
from jaxcomp.infos import figure_names
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, wide_spec, widen, zeros_like_spec

__all__ = ["SqueezeState", "deep_squeeze"]


class SqueezeState(NamedTuple):
    """State of `deep_squeeze`."""

    error: Tree  # what the last messages left out
    codec: State


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

    x  <- x + u
    c  =  C(x + e),  e <- x + e - D(c)
    x  <- x + gamma sum_j w_ij (D(c_j) - D(c_i))

    One vector of state less than `choco`; but models, not differences, are compressed,
    so the error does not vanish when the models agree, and gamma has to be smaller.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who hears whom; symmetric.
      axis: the mapped axis.
      gamma: consensus step size in (0, 1].
      allow: take a compressor without a contraction all the same.

    References:
      Tang et al., DeepSqueeze: Decentralization Meets Error-Compensated Compression,
      arXiv:1907.07346, 2019.
    """
    neighbours = symmetric_round(graph, "deep_squeeze")
    codec = lift(plan)

    def init(params: Tree) -> SqueezeState:
        if not allow:
            check_contraction(plan, params, "deep_squeeze")
        error = zeros_like_spec(wide_spec(spec_of(params)))
        return SqueezeState(error, codec.init(spec_of(params)))

    def mix(
        params: Tree, updates: Tree, state: SqueezeState, key: Array, phase: int
    ) -> Mixed:
        half = plus(widen(params), widen(updates))
        given = plus(half, state.error)
        message = cast_like(given, spec_of(params))
        result = send_compressed(codec, message, state.codec, key, neighbours, axis)
        new = SqueezeState(plus(given, result.sent, -1), result.state)
        info = result.info._replace(residual_norm=result.info.unsent_norm)
        return Mixed(plus(widen(updates), result.pull, gamma), new, info)

    return Mixer(
        f"{name} on {graph.name}, {codec.name}",
        init=init,
        mix=mix,
        axis=axis,
        figures=figure_names(codec),
    )

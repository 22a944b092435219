"""ECD-PSGD: messages that extrapolate, so that their errors average out."""

from typing import NamedTuple

import jax.numpy as jnp

from jaxcomp.base import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.gossip._neighbours import (
    check_contraction,
    plus,
    send_compressed,
    symmetric_round,
)
from jaxcomp.gossip.topology import Topology
from jaxcomp.infos import figure_names
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["EcdState", "ecd_psgd"]


class EcdState(NamedTuple):
    """State of `ecd_psgd`."""

    step: Array  # [] int32, steps done
    heard: Tree  # s_i = sum_j w_ij x_hat_j
    codec: State


@method(given=3)
def ecd_psgd(
    name: str, plan: Plan, graph: Topology, axis: Axis, allow: bool = False
) -> Mixer:
    """Neighbours estimate a model from messages that overshoot it.

    x' = s + u
    z  = (1 - t/2) x + (t/2) x'
    s <- (1 - 2/t) s + (2/t) sum_j w_ij D(C(z_j)),  x <- x'      t = 1, 2, ...

    With an unbiased compressor the error of the estimates falls as 1/t, as long as z,
    which grows with t, is compressed well. A biased one, or one that keeps little,
    diverges. `choco` does not.

    Args:
      plan: which tensors are compressed as one vector, and how; unbiased and precise.
      graph: who hears whom; symmetric.
      axis: the mapped axis.
      allow: take a compressor without a contraction all the same: models run away.

    References:
      Tang et al., Communication Compression for Decentralized Training,
      arXiv:1803.06443, 2018 (algorithm 2).
    """
    neighbours = symmetric_round(graph, "ecd_psgd")
    codec = lift(plan)

    def init(params: Tree) -> EcdState:
        if not allow:
            check_contraction(plan, params, "ecd_psgd")
        return EcdState(jnp.int32(0), widen(params), codec.init(spec_of(params)))

    def mix(
        params: Tree, updates: Tree, state: EcdState, key: Array, phase: int
    ) -> Mixed:
        step = state.step + 1
        t = step.astype(jnp.float32)
        change = plus(plus(state.heard, widen(updates)), widen(params), -1)  # x' - x
        overshot = cast_like(plus(widen(params), change, t / 2), spec_of(params))
        result = send_compressed(codec, overshot, state.codec, key, neighbours, axis)
        news = plus(plus(result.sent, result.pull), state.heard, -1)
        new = EcdState(step, plus(state.heard, news, 2 / t), result.state)
        return Mixed(change, new, result.info)

    return Mixer(
        f"{name} on {graph.name}, {codec.name}",
        init=init,
        mix=mix,
        axis=axis,
        figures=figure_names(codec),
    )

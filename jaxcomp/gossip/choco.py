"""CHOCO-SGD: gossip of compressed differences to public estimates."""

from typing import NamedTuple

from jaxcomp.base import Array, Axis, Mixed, Mixer, State, Tree
from jaxcomp.gossip._neighbours import (
    check_contraction,
    plus,
    send_compressed,
    symmetric_round,
)
from jaxcomp.gossip._starts import first_pull
from jaxcomp.gossip._step_size import Gamma, step_sizer
from jaxcomp.gossip.topology import Topology
from jaxcomp.infos import figure_names
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["ChocoState", "choco"]


class ChocoState(NamedTuple):
    """State of `choco`: two vectors, however many neighbours there are."""

    public: Tree  # x_hat_i: what all neighbours know of this worker's model
    pull: Tree  # p_i = sum_j w_ij (x_hat_j - x_hat_i)
    codec: State


@method("gamma", given=3)
def choco(
    name: str,
    plan: Plan,
    graph: Topology,
    axis: Axis,
    gamma: Gamma = 0.5,
    allow: bool = False,
) -> Mixer:
    """Send what the neighbours do not know yet, and step towards their estimates.

    x    <- x + u                       the worker's own update
    q    =  C(x - x_hat)                one message, to all neighbours
    x_hat += D(q),  p += sum_j w_ij (D(q_j) - D(q))
    x    <- x + gamma p

    Any contraction works: what a message leaves out stays in x - x_hat and comes with
    the next ones. Estimates start at the initial models, and p at their differences:
    `jaxcomp.starts` says where `init` knows these. p is kept instead of
    sum_j w_ij x_hat_j: it rounds relative to what workers disagree on, and not relative
    to the model, so that the mean hardly drifts.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who hears whom; symmetric.
      axis: the mapped axis.
      gamma: consensus step size in (0, 1]; smaller for stronger compression. "theory":
        from the spectral gap and the compressor's contraction, safe and slow; "tuned":
        the best of a grid on a consensus problem.
      allow: take a compressor without a contraction all the same;
        "tuned" finds out by itself whether it does.

    References:
      Koloskova, Stich and Jaggi, Decentralized Stochastic Optimization and Gossip
      Algorithms with Compressed Communication, arXiv:1902.00340, 2019 (algorithm 2).
    """
    neighbours = symmetric_round(graph, "choco")
    codec, step_size = lift(plan), step_sizer(gamma, plan, graph)

    def init(params: Tree) -> ChocoState:
        if not allow and gamma != "tuned":
            check_contraction(plan, params, "choco")
        pull = first_pull(params, graph, axis)
        return ChocoState(widen(params), pull, codec.init(spec_of(params)))

    def mix(
        params: Tree, updates: Tree, state: ChocoState, key: Array, phase: int
    ) -> Mixed:
        spec = spec_of(params)
        half = plus(widen(params), widen(updates))
        unknown = cast_like(plus(half, state.public, -1), spec)
        result = send_compressed(codec, unknown, state.codec, key, neighbours, axis)
        public = plus(state.public, result.sent)
        pull = plus(state.pull, result.pull)
        info = result.info._replace(residual_norm=result.info.unsent_norm)
        new = ChocoState(public, pull, result.state)
        return Mixed(plus(widen(updates), pull, step_size(spec)), new, info)

    return Mixer(
        f"{name} on {graph.name}, {codec.name}",
        init=init,
        mix=mix,
        axis=axis,
        figures=figure_names(codec),
    )

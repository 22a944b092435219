"""CHOCO-SGD: gossip of compressed differences to public estimates."""

from typing import NamedTuple

from jaxcomp.core.specs import method
from jaxcomp.core.trees import widen
from jaxcomp.core.types import Axis, Mixed, Mixer, Resize, State, Tree
from jaxcomp.mixers.gossip import _neighbours as near
from jaxcomp.mixers.gossip._neighbours import Neighbours, plus
from jaxcomp.mixers.gossip._step_size import Gamma, step_sizer
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan


class ChocoState(NamedTuple):
    """State of `choco`: two vectors, however many neighbours there are."""

    public: Tree  # x_hat_i: what all neighbours know of this worker's model
    pull: Tree  # p_i = sum_j w_ij (x_hat_j - x_hat_i)
    codec: State = ()


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

    x     <- x + u                      u: the worker's own update
    q      = C(x - x_hat)               one message, to all neighbours
    x_hat <- x_hat + D(q)
    p     <- p + sum_j w_ij (D(q_j) - D(q))
    x     <- x + gamma p

    Any compressor with a contraction works: what a message leaves out stays in
    x - x_hat and is sent with later messages. The estimates x_hat start at the initial
    models, and p at their weighted differences; `jaxcomp.mixers.initial_models` says
    when `init` knows these. The state holds p instead of sum_j w_ij x_hat_j, because p
    is as small as the differences between workers: rounding errors are relative to it,
    so the mean of the models hardly drifts.

    With another number of workers, models and x_hat are averaged or copied alike, so
    that x - x_hat, which is still to be sent, keeps its mean. p is computed anew from
    the x_hat of the neighbours in the new graph.

    Args:
      plan: which tensors are compressed as one vector, and how.
      graph: who sends to whom; symmetric.
      axis: the mapped axis.
      gamma: consensus step size in (0, 1]; smaller for stronger compression. "theory"
        computes it from the spectral gap and the compressor's contraction, which is
        safe and slow. "tuned" takes the best of a grid on a consensus problem.
      allow: take a compressor without a contraction. "tuned" takes it too, as it
        measures whether the workers still agree.

    References:
      Koloskova, Stich and Jaggi, Decentralized Stochastic Optimization and Gossip
      Algorithms with Compressed Communication, arXiv:1902.00340, 2019 (algorithm 2).
    """
    step_size = step_sizer(gamma, plan, graph)

    def start(params: Tree) -> ChocoState:
        return ChocoState(widen(params), near.first_pull(params, graph, axis))

    def step(
        params: Tree, updates: Tree, state: ChocoState, neighbours: Neighbours
    ) -> Mixed:
        unknown = plus(plus(params, updates), state.public, -1)
        result = neighbours.send(unknown, state.codec)
        public = plus(state.public, result.sent)
        pull = plus(state.pull, result.pull)
        info = result.info._replace(residual_norm=result.info.unsent_norm)
        change = plus(updates, pull, step_size(neighbours.spec))
        return Mixed(change, ChocoState(public, pull, result.state), info)

    def rebuild(state: ChocoState, params: Tree, workers: int) -> ChocoState:
        return state._replace(pull=near.first_pulls(state.public, graph))

    allow, resize = allow or gamma == "tuned", Resize(ChocoState, ("pull",), rebuild)
    mixer = near.symmetric_mixer(name, plan, graph, axis, start, step, resize, allow)
    return near.keep_rounding(mixer)

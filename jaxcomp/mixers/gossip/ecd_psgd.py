"""ECD-PSGD: workers send extrapolated models, so that errors average out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.specs import method
from jaxcomp.core.trees import wide_spec, zeros_like_spec
from jaxcomp.core.types import Array, Axis, Mixed, Mixer, Resize, State, Tree, counted
from jaxcomp.mixers.gossip import _neighbours as near
from jaxcomp.mixers.gossip._neighbours import Neighbours, plus
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.scope import Plan


class EcdState(NamedTuple):
    """State of `ecd_psgd`."""

    step: Array  # [] int32, steps done
    ahead: Tree  # h_i = s_i - x_i, with s_i = sum_j w_ij x_hat_j
    codec: State = ()


@method(given=3)
def ecd_psgd(
    name: str, plan: Plan, graph: Topology, axis: Axis, allow: bool = False
) -> Mixer:
    """Send a point beyond the new model, from which neighbours estimate the model.

    x' = s + u                          u: the worker's own update
    z  = (1 - t/2) x + (t/2) x'         t = 1, 2, ...: number of the step
    s <- (1 - 2/t) s + (2/t) sum_j w_ij D(C(z_j))
    x <- x'

    With an unbiased compressor the error of the estimates falls as 1/t, as long as z,
    which grows with t, is compressed precisely. With a biased compressor, or one that
    keeps little, training diverges; with `choco` it does not.

    The state holds h = s - x instead of s. Rounding is then relative to h, which is as
    small as the differences between workers: an error of s would be taken for a
    movement, and extrapolated.

    With another number of workers, models are averaged or copied, and s is computed
    anew from them in the new graph: neighbours then know each other's models exactly.

    Args:
      plan: which tensors are compressed as one vector, and how; unbiased and precise.
      graph: who sends to whom; symmetric.
      axis: the mapped axis.
      allow: take a compressor without a contraction, although models may diverge.

    References:
      Tang et al., Communication Compression for Decentralized Training,
      arXiv:1803.06443, 2018 (algorithm 2).
    """

    def start(params: Tree) -> EcdState:
        return EcdState(jnp.int32(0), zeros_like_spec(wide_spec(params)))

    def step(
        params: Tree, updates: Tree, state: EcdState, neighbours: Neighbours
    ) -> Mixed:
        steps = counted(state.step)
        t = steps.astype(jnp.float32)
        change = plus(state.ahead, updates)  # x' - x
        result = neighbours.send(plus(params, change, t / 2), state.codec)
        beyond = plus(result.sent, params, -1)
        news = plus(plus(beyond, result.pull), state.ahead, -1)
        ahead = jax.tree.map(lambda n, u: 2 / t * n - u, news, updates)
        return Mixed(change, EcdState(steps, ahead, result.state), result.info)

    def rebuild(state: EcdState, params: Tree, workers: int) -> EcdState:
        return state._replace(ahead=near.first_pulls(params, graph))

    resize = Resize(EcdState, ("ahead",), rebuild)
    return near.symmetric_mixer(name, plan, graph, axis, start, step, resize, allow)

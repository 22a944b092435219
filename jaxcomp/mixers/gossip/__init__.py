"""Gossip: each worker trains a model of its own and sends to its neighbours only.

A factory takes the plan (which tensors, and how), the graph and the axis first; its own
arguments come from the spec string. One algorithm, one file, one line here.
"""

from collections.abc import Callable

from jaxcomp.core.specs import Call, build
from jaxcomp.core.types import Axis, Compressor, Mixer, State, Tree
from jaxcomp.mixers.gossip.choco import choco
from jaxcomp.mixers.gossip.choco_overlapped import choco_overlapped
from jaxcomp.mixers.gossip.d_psgd import d_psgd
from jaxcomp.mixers.gossip.dcd_psgd import dcd_psgd
from jaxcomp.mixers.gossip.deep_squeeze import deep_squeeze
from jaxcomp.mixers.gossip.delayed_sgd import delayed_sgd
from jaxcomp.mixers.gossip.ecd_psgd import ecd_psgd
from jaxcomp.mixers.gossip.stale_hypercube import stale_hypercube
from jaxcomp.mixers.gossip.topology import Topology, topology
from jaxcomp.parallel.checks import check_real
from jaxcomp.scope import Plan, make_plan

__all__ = ["REGISTRY", "Topology", "make", "topology"]

REGISTRY: dict[str, Callable[..., Mixer]] = {
    "choco": choco,
    "choco_overlapped": choco_overlapped,
    "d_psgd": d_psgd,
    "dcd_psgd": dcd_psgd,
    "deep_squeeze": deep_squeeze,
    "delayed_sgd": delayed_sgd,
    "ecd_psgd": ecd_psgd,
    "stale_hypercube": stale_hypercube,
}


def make(
    spec: str | Call,
    graph: Topology,
    compressor: str | Compressor = "none",
    scope: str | Plan = "per_leaf",
    axis: Axis = "workers",
) -> Mixer:
    """Build a gossip algorithm from spec strings.

    Example:
      >>> make("choco(gamma=0.4)", topology("ring", 8), "sign").name
      'choco(gamma=0.4) on ring, sign'
    """
    plan = make_plan(scope, compressor)
    mixer = build(spec, REGISTRY, "mixer", plan, graph, axis)

    def init(params: Tree) -> State:
        check_real(params, mixer.name)
        return mixer.init(params)

    return mixer._replace(init=init, workers=graph.size, patterns=plan.patterns)

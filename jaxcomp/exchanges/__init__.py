"""Exchanges: ways to average gradients over workers. One way, one file, one line.

A factory takes the plan (which tensors, and how) and the axis first; its own arguments
come from the spec string.
"""

from jaxcomp.exchanges._common import (
    REGISTRY,
    figure_names,
    make,
    measure,
    nothing_lost,
)
from jaxcomp.exchanges.aligned_psum import aligned_psum
from jaxcomp.exchanges.budget import budget
from jaxcomp.exchanges.exact import dense_step, exact
from jaxcomp.exchanges.gather import gather
from jaxcomp.exchanges.hierarchical import hierarchical
from jaxcomp.exchanges.majority_vote import majority_vote
from jaxcomp.exchanges.power_sgd import power_sgd
from jaxcomp.exchanges.shared_scale import shared_scale
from jaxcomp.exchanges.simulated import simulated
from jaxcomp.exchanges.sparse_reduce import sparse_reduce
from jaxcomp.exchanges.two_phase import two_phase

__all__ = [
    "REGISTRY",
    "dense_step",
    "figure_names",
    "make",
    "measure",
    "nothing_lost",
]

REGISTRY |= {
    "aligned_psum": aligned_psum,
    "budget": budget,
    "exact": exact,
    "gather": gather,
    "hierarchical": hierarchical,
    "majority_vote": majority_vote,
    "power_sgd": power_sgd,
    "shared_scale": shared_scale,
    "simulated": simulated,
    "sparse_reduce": sparse_reduce,
    "two_phase": two_phase,
}

"""Exchanges: ways to average gradients over workers. One way, one file, one line.

A factory takes the plan (which tensors, and how) and the axis first; its own arguments
come from the spec string.
"""

from collections.abc import Callable

import jax

from jaxcomp.core.specs import Call, build
from jaxcomp.core.trees import spec_of, zeros_like_spec
from jaxcomp.core.types import (
    Array,
    Averaged,
    Axis,
    Compressor,
    Exchange,
    State,
    Tree,
    ticked,
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
from jaxcomp.exchanges.step_info import nothing_lost
from jaxcomp.exchanges.two_phase import two_phase
from jaxcomp.parallel.checks import check_real
from jaxcomp.scope import Plan, make_plan

__all__ = ["REGISTRY", "dense_step", "make"]

REGISTRY: dict[str, Callable[..., Exchange]] = {
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


def make(
    spec: str | Call | Exchange,
    compressor: str | Compressor = "none",
    scope: str | Plan = "per_leaf",
    axis: Axis = "workers",
) -> Exchange:
    """Build an exchange, without a memory, from spec strings.

    Example:
      >>> make("gather", "sign").name
      'gather(sign)'
    """
    if isinstance(spec, Exchange):
        return spec
    plan = make_plan(scope, compressor)
    built = build(spec, REGISTRY, "exchange", plan, axis)
    return _guarded(built)._replace(patterns=plan.patterns)


def _guarded(exchange: Exchange) -> Exchange:
    """The same exchange, which sends nothing if the tree has no elements.

    It refuses complex numbers, if it has no use for their imaginary parts.
    """

    def init(tree: Tree) -> State:
        check(tree)
        return exchange.init(tree)

    def check(tree: Tree) -> None:
        if not exchange.is_complex:
            check_real(tree, exchange.name)

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        check(tree)
        if any(leaf.size for leaf in jax.tree.leaves(tree)):
            return exchange.average(tree, state, key)
        empty = zeros_like_spec(spec_of(tree))
        return Averaged(empty, empty, ticked(state), nothing_lost(exchange.figures))

    return exchange._replace(init=init, average=average)

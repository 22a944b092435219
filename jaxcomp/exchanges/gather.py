"""Gather: every worker receives every payload, in one fused all-gather."""

import jax

from jaxcomp.core.coding.payloads import scaled
from jaxcomp.core.trees import cast_like, spec_of
from jaxcomp.core.types import Axis, Exchange, Payload, Tree
from jaxcomp.exchanges._common import gather_trees, is_sparse, mean_of_payloads
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift


def gather(plan: Plan, axis: Axis) -> Exchange:
    """Gather the payloads of all workers and average what they decode to.

    mean = (1/N) sum_i D(C(g_i)). Each worker sends one message of `nbits(payload)` and
    receives N of them, so the traffic into a worker grows with N. That suits strong
    compression and tens of workers. Random methods draw differently on each worker, so
    their errors average out.

    Args:
      plan: which tensors are compressed as one vector, and how.
      axis: the mapped axis.
    """
    codec = lift(plan)

    def mean(payload: Payload, sent: Tree) -> Tree:
        spec, workers = spec_of(sent), collectives.size(axis)
        payloads = gather_trees(payload, axis)
        # The division by a power of two rounds nothing, so it may come before the sum.
        if is_sparse(codec, spec) and workers & (workers - 1) == 0:
            shares = scaled(payloads, 1 / workers)
            if shares is not None:
                return cast_like(codec.decompress_sum(shares, spec), spec)
        total = codec.decompress_sum(payloads, spec)
        return cast_like(jax.tree.map(lambda t: t / workers, total), spec)

    return mean_of_payloads("gather", plan, codec, axis, mean)

"""Simulated: the numbers of `gather` without its savings, for studies alone."""

import jax.numpy as jnp

from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.types import Axis, Exchange, Figure
from jaxcomp.exchanges._common import mean_of_payloads
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift


def simulated(plan: Plan, axis: Axis) -> Exchange:
    """Sum decompressed gradients by a dense all-reduce: no traffic is saved.

    mean = (1/N) sum_i D(C(g_i)), equal to that of `gather` up to rounding. It is quick
    on one machine, for studies of what a method does to training. Logs and figures say
    that it is simulated, and its bytes are those of dense gradients; the column
    `would_send_bytes` has the bytes that the method would send.

    Args:
      plan: which tensors are compressed as one vector, and how.
      axis: the mapped axis.
    """
    would_send = Figure("would_send_bytes", lambda p, _: jnp.float32(nbits(p) / 8))
    codec = lift(plan)
    codec = codec._replace(figures=(*codec.figures, would_send))
    exchange = mean_of_payloads(
        "simulated", plan, codec, axis, lambda _, sent: collectives.mean(sent, axis)
    )
    return exchange._replace(simulated=True)

"""Simulated: the numbers of `gather` without its savings, for studies alone."""

import functools

import jax.numpy as jnp

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Axis, Exchange, PerWorker, State, Tree
from jaxcomp.bounds import leaf_choices, leaf_contractions
from jaxcomp.coding.payloads import nbits
from jaxcomp.exchanges._common import compress_own
from jaxcomp.infos import figure_names, measure
from jaxcomp.scope import Plan, lift
from jaxcomp.trees import spec_of

__all__ = ["simulated"]


def simulated(plan: Plan, axis: Axis) -> Exchange:
    """Sum decompressed gradients by a dense all-reduce: nothing is saved.

    mean = (1/N) sum_i D(C(g_i)), as `gather` computes it, to rounding. Quicker where
    the network is no matter and one wants to know what a method does to training; logs
    and figures say that it is simulated, and its bytes are the dense ones. What the
    method would send stands in the column `would_send_bytes`.

    Args:
      plan: which tensors are compressed as one vector, and how.
      axis: the mapped axis.
    """
    codec = lift(plan)

    def init(tree: Tree) -> State:
        return PerWorker(codec.init(spec_of(tree)))

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec = spec_of(tree)
        payload, state = compress_own(codec, tree, state, key, axis)
        sent = codec.decompress(payload, spec)
        info = measure(tree, sent, codec, payload)
        bytes_meant = {"would_send_bytes": jnp.float32(nbits(payload) / 8)}
        info = info._replace(extra={**info.extra, **bytes_meant})
        return Averaged(collectives.mean(sent, axis), sent, state, info)

    return Exchange(
        f"simulated({codec.name})",
        init=init,
        average=average,
        axis=axis,
        figures=(*figure_names(codec), "would_send_bytes"),
        contraction=functools.partial(leaf_contractions, plan),
        chooses=functools.partial(leaf_choices, plan),
        simulated=True,
    )

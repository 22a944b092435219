"""Gather: every worker receives every payload, in one fused all-gather."""

import functools

import jax

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Axis, Exchange, PerWorker, State, Tree
from jaxcomp.bounds import leaf_choices, leaf_contractions
from jaxcomp.coding.message import fuse, split
from jaxcomp.exchanges._common import compress_own
from jaxcomp.infos import figure_names, measure
from jaxcomp.scope import Plan, lift
from jaxcomp.trees import cast_like, spec_of

__all__ = ["gather"]


def gather(plan: Plan, axis: Axis) -> Exchange:
    """Gather the payloads of all workers and average what they decode to.

    mean = (1/N) sum_i D(C(g_i)). Each worker hands over one message of
    `nbits(payload)` and receives N of them, so the traffic into a worker grows with N:
    right for strong compression and tens of workers. Random methods draw differently
    on each worker, so their errors average out.

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
        messages = collectives.gather(fuse(payload), axis)
        payloads = jax.vmap(lambda words: split(words, spec_of(payload)))(messages)
        total = codec.decompress_sum(payloads, spec)
        mean = jax.tree.map(lambda t: t / messages.shape[0], total)
        sent = codec.decompress(payload, spec)
        info = measure(tree, sent, codec, payload)
        return Averaged(cast_like(mean, spec), sent, state, info)

    return Exchange(
        f"gather({codec.name})",
        init=init,
        average=average,
        axis=axis,
        figures=figure_names(codec),
        contraction=functools.partial(leaf_contractions, plan),
        chooses=functools.partial(leaf_choices, plan),
    )

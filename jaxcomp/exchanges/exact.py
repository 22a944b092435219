"""Exact: the dense mean, the baseline of everything."""

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Averaged, Axis, Exchange, Info, Spec, State, Tree
from jaxcomp.exchanges import collectives
from jaxcomp.scope import Plan

__all__ = ["dense_step", "exact"]


def exact(plan: Plan, axis: Axis) -> Exchange:
    """Average the uncompressed tree: mean = (1/N) sum_i g_i, by one all-reduce.

    Args:
      plan: not used; every exchange has the same signature, so that one setting
        switches the compression off.
      axis: the mapped axis.
    """

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        zero = jnp.float32(0)
        info = Info(zero, zero, zero)
        return Averaged(collectives.mean(tree, axis), tree, state, info)

    return Exchange(
        "exact",
        init=lambda tree: (),
        average=average,
        axis=axis,
        lossless=_every_leaf,
    )


def dense_step(exchange: Exchange) -> Exchange:
    """The same exchange at a step at which everything is sent as it is.

    Its state is that of the exchange and does not change, so a run may pass from one
    to the other at any step: dense first epochs, and a dense step now and then.
    """

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        zero = jnp.zeros((), jnp.float32)
        extra: dict[str, Array] = dict.fromkeys(exchange.figures, zero)
        mean = collectives.mean(tree, exchange.axis)
        return Averaged(mean, tree, state, Info(zero, zero, zero, extra))

    return exchange._replace(average=average, lossless=_every_leaf)


def _every_leaf(spec: Spec) -> list[bool]:
    return [True] * len(jax.tree.leaves(spec))

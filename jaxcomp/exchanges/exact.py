"""Exact: the mean of uncompressed gradients, the baseline of all other methods."""

from collections.abc import Callable

import jax

from jaxcomp.core import types
from jaxcomp.core.types import Array, Averaged, Axis, Exchange, Spec, State, Tree
from jaxcomp.exchanges._common import nothing_lost
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan


def exact(plan: Plan, axis: Axis) -> Exchange:
    """Average the uncompressed tree: mean = (1/N) sum_i g_i, by one all-reduce.

    Gradients are sent and added in at least float32: in float16 a sum may overflow even
    where the mean does not.

    Args:
      plan: not used; every exchange has the same signature, so that one setting
        switches the compression off.
      axis: the mapped axis.
    """
    return Exchange(
        "exact",
        init=lambda tree: (),
        average=_dense(axis),
        axis=axis,
        contraction=_every_leaf,
        ignores_compressor=True,
        is_complex=True,
    )


def dense_step(exchange: Exchange) -> Exchange:
    """The same exchange for steps in which everything is sent uncompressed.

    It has the state of the exchange, and changes nothing of it but clocks. So a run may
    change from one to the other at any step, for dense first epochs or a dense step now
    and then.
    """
    average = _dense(exchange.axis, exchange.figures)
    return exchange._replace(
        average=average, contraction=_every_leaf, chooses=types.no_choice, clear=None
    )


def _dense(
    axis: Axis, figures: tuple[str, ...] = ()
) -> Callable[[Tree, State, Array], Averaged]:
    """The `average` of an exchange that loses nothing; its figures are zeros."""

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        mean = collectives.mean(tree, axis)
        return Averaged(mean, tree, types.ticked(state), nothing_lost(figures))

    return average


def _every_leaf(spec: Spec) -> list[float | None]:
    return [1.0] * len(jax.tree.leaves(spec))

"""Error feedback: add to the next gradient what this one could not send."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import (
    Array,
    Averaged,
    Exchange,
    PerWorker,
    State,
    Tree,
    cast_like,
    spec_of,
    widen,
)
from jaxcomp.memory.common import check_factor, check_lawful, held_with, kept_zeros
from jaxcomp.specs import canonical

__all__ = ["FeedbackState", "error_feedback"]


class FeedbackState(NamedTuple):
    """State of `error_feedback`."""

    residual: PerWorker  # the gradient tree, in at least float32
    exchange: State


def error_feedback(exchange: Exchange, decay: float = 1.0) -> Exchange:
    """Keep e = p - sent, where p = g + decay * e is what the exchange is given.

    Sent plus kept equals given at every step, so with decay 1 nothing is ever lost,
    only late; biased compressors then converge. Residuals are kept in at least
    float32, or a bfloat16 gradient would swallow them. The mean is rounded to the
    gradient's type after that: for its own rounding there is no memory.

    Args:
      exchange: any lawful exchange (mean of `sent` equals the mean).
      decay: factor on the old residual, in [0, 1].

    References:
      Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014. Karimireddy et
      al., Error Feedback Fixes SignSGD, arXiv:1901.09847, 2019.
    """
    check_factor("decay", decay)
    check_lawful(exchange)

    def init(tree: Tree) -> FeedbackState:
        residual = kept_zeros(tree)
        return FeedbackState(residual, exchange.init(residual.value))

    def average(tree: Tree, state: FeedbackState, key: Array) -> Averaged:
        given = jax.tree.map(
            lambda g, e: g + decay * e, widen(tree), state.residual.value
        )
        step = exchange.average(given, state.exchange, key)
        residual = jax.tree.map(jnp.subtract, given, step.sent)
        info = step.info._replace(residual_norm=step.info.unsent_norm)
        new = FeedbackState(PerWorker(residual), step.state)
        mean = cast_like(step.mean, spec_of(tree))
        return step._replace(mean=mean, state=new, info=info)

    return exchange._replace(
        name=f"{canonical(error_feedback, decay=decay)}: {exchange.name}",
        init=init,
        average=average,
        held=held_with(exchange, lambda state: state.residual.value),
    )

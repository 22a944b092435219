"""Error feedback: add to the next gradient what this one could not send."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import (
    Factor,
    check_contraction,
    check_keeps,
    held_with,
    kept_zeros,
)
from jaxcomp.specs import method
from jaxcomp.trees import cast_like, spec_of, widen

__all__ = ["FeedbackState", "error_feedback"]


class FeedbackState(NamedTuple):
    """State of `error_feedback`."""

    residual: PerWorker  # the gradient tree, in at least float32
    exchange: State


@method(given=1)
def error_feedback(
    name: str, exchange: Exchange, decay: Factor = 1.0, allow: bool = False
) -> Exchange:
    """Keep e = p - sent, where p = g + decay * e is what the exchange is given.

    Sent plus kept equals given at every step, so with decay 1 nothing is ever lost,
    only late; biased compressors then converge. Residuals are kept in at least
    float32, or a bfloat16 gradient would swallow them. The mean is rounded to the
    gradient's type after that: for its own rounding there is no memory.

    The residual stays bounded if the compressor is a contraction: by 2 / delta times
    the gradient. Of one that may lose more than there is, such as `qsgd` of few levels,
    it grows without end; that is refused.

    Args:
      exchange: any lawful exchange (mean of `sent` equals the mean) whose compressor
        has a contraction.
      decay: factor on the old residual, in [0, 1].
      allow: take a compressor without a contraction all the same.

    References:
      Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014. Karimireddy et
      al., Error Feedback Fixes SignSGD, arXiv:1901.09847, 2019.
    """
    check_keeps(exchange)

    def init(tree: Tree) -> FeedbackState:
        residual = kept_zeros(tree)
        inner = exchange.init(residual.value)
        if not allow:
            check_contraction(exchange, residual.value, name)
        return FeedbackState(residual, inner)

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
        name=f"{name}: {exchange.name}",
        init=init,
        average=average,
        held=held_with(exchange, lambda state: state.residual.value),
        keeper=name,
    )

"""Error feedback: add to the next gradient what was not sent of this one."""

from typing import NamedTuple

import jax

from jaxcomp.core import types
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Averaged, Exchange, PerWorker, State, Tree
from jaxcomp.memory._common import Factor, wrapped


@types.averaged_on_resize
class FeedbackState(NamedTuple):
    """State of `error_feedback`."""

    residual: PerWorker  # e, in at least float32
    exchange: State


@method(given=1)
def error_feedback(
    name: str, exchange: Exchange, decay: Factor = 1.0, allow: bool = False
) -> Exchange:
    """Send p = g + decay * e, and keep the residual e = p - sent.

    In every step, sent plus kept equals given. With decay=1 nothing is lost, it only
    arrives later, and biased compressors converge. The mean is rounded to the dtype of
    the gradient after that, and the error of this rounding is not kept.

    If the compressor is a contraction, the residual stays below 2 / delta times the
    gradient. If the compressor may lose more than it was given, as `qsgd` with few
    levels may, the residual grows without end, so such a compressor is refused.

    Args:
      exchange: any exchange where the mean over workers of `sent` equals the mean, and
        whose compressor is a contraction.
      decay: factor on the old residual, in [0, 1].
      allow: accept a compressor that is not a contraction.

    References:
      Seide et al., 1-Bit Stochastic Gradient Descent and its Application to
      Data-Parallel Distributed Training of Speech DNNs, Interspeech, 2014. Karimireddy
      et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
      arXiv:1901.09847, 2019.
    """

    def average(gradient: Tree, state: FeedbackState, key: Array) -> Averaged:
        given = jax.tree.map(lambda g, e: g + decay * e, gradient, state.residual.value)
        step = exchange.average(given, state.exchange, key)
        residual = step.unsent(given)
        return step._replace(state=FeedbackState(PerWorker(residual), step.state))

    return wrapped(
        name,
        exchange,
        lambda zeros, inner: FeedbackState(PerWorker(zeros), inner),
        average,
        keeps=True,
        held=lambda state: state.residual.value,
        allow=allow,
    )

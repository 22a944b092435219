"""SparseLoCo: few elements of what was learnt, and error feedback as momentum."""

from jaxcomp.core.specs import Count, Positive, SpecError, method
from jaxcomp.core.types import Exchange, Mixer
from jaxcomp.memory._common import Factor
from jaxcomp.memory.error_feedback import error_feedback
from jaxcomp.mixers.local._rounds import Steps, rounds, scaled_mean


@method("h", given=1)
def sparse_loco(
    name: str,
    exchange: Exchange,
    h: Steps = 16,
    rate: Positive = 1.0,
    decay: Factor = 0.95,
    fragments: Count = 1,
    allow: bool = False,
) -> Mixer:
    """Send the largest elements of what was learnt, and keep the rest for later.

    e_i    <- decay e_i + (anchor - x_i)
    sent_i  = D(C(e_i))
    e_i    <- e_i - sent_i
    anchor <- anchor - rate (mean of sent)
    x_i    <- anchor

    The residual e acts as a momentum of the outer step, which has no other momentum.

    Args:
      exchange: how the differences are averaged, without a memory. The paper's
        compressor is "block_top_k" with 1 to 3 % of the elements, then "qsgd" with 2
        bits.
      h: steps of a round.
      rate: of the outer step.
      decay: of the residual, in [0, 1].
      fragments: parts of the model that are synchronised at different steps.
      allow: take a compressor without a contraction, as in `error_feedback`.

    Example:
      >>> from jaxcomp import exchanges
      >>> sparse_loco(exchanges.make("gather", "top_k(keep=0.02)"), h=2).schedule
      (0, 1)

    References:
      Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo,
      arXiv:2508.15706, 2025.
    """
    if exchange.held:
        raise SpecError(
            f"sparse_loco has error feedback of its own, and {exchange.name!r} keeps "
            "something too: set memory to 'none'"
        )
    with_feedback = error_feedback(exchange, decay, allow)
    return rounds(with_feedback, scaled_mean(rate), h, fragments, title=name)

"""DiLoCo: long rounds of local training and an outer step with Nesterov momentum."""

from jaxcomp.core.specs import Count, Positive, method
from jaxcomp.core.types import Exchange, Mixer
from jaxcomp.memory._common import BelowOne, check_inner
from jaxcomp.mixers.local._rounds import Steps, nesterov, rounds


@method("h", given=1)
def diloco(
    name: str,
    exchange: Exchange,
    h: Steps = 16,
    rate: Positive = 0.7,
    momentum: BelowOne = 0.9,
    fragments: Count = 1,
) -> Mixer:
    """Take what all workers have learnt in h steps as a gradient of the common model.

    d       = mean of (anchor - x_i)
    b      <- momentum b + d
    anchor <- anchor - rate (d + momentum b)
    x_i    <- anchor

    The inner optimiser and its momentum stay local. With several fragments it is
    Streaming DiLoCo: each part of the model is synchronised at a step of its own.

    Args:
      exchange: how the differences are averaged. 4 bits for each element are enough:
        "gather" with the compressor "qsgd(levels=7)".
      h: steps of a round.
      rate: of the outer step.
      momentum: of the outer step, in [0, 1).
      fragments: parts of the model that are synchronised at different steps.

    Example:
      >>> from jaxcomp import exchanges
      >>> diloco(exchanges.make("exact"), h=4, fragments=2).schedule
      (0, 1, 0, 2)

    References:
      Douillard et al., DiLoCo, arXiv:2311.08105, 2023. Douillard et al., Streaming
      DiLoCo, arXiv:2501.18512, 2025.
    """
    if momentum:
        check_inner(exchange, keeps=False)
    outer = nesterov(rate, momentum)
    return rounds(exchange, outer, h, fragments, title=name, has_momentum=True)

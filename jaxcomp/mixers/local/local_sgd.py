"""Local SGD: train alone for a while, then average the models."""

from jaxcomp.core.specs import Count, method
from jaxcomp.core.types import Exchange, Mixer
from jaxcomp.mixers.local._rounds import Steps, rounds, scaled_mean


@method("h", given=1)
def local_sgd(
    name: str, exchange: Exchange, h: Steps = 8, fragments: Count = 1
) -> Mixer:
    """Average the models every h steps: x_i <- anchor - mean of (anchor - x_j).

    The exchange averages the differences since the last round, so a compressor loses a
    part of these and not of the models. Momentum stays local.

    Args:
      exchange: how the differences are averaged.
      h: steps of a round; 1 averages after every step.
      fragments: parts of the model that are averaged at different steps.

    Example:
      >>> from jaxcomp import exchanges
      >>> local_sgd(exchanges.make("exact"), h=3).schedule
      (0, 0, 1)

    References:
      Stich, Local SGD Converges Fast and Communicates Little, arXiv:1805.09767, 2019.
    """
    return rounds(exchange, scaled_mean(1.0), h, fragments, title=name)

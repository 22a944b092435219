"""Local updates: workers train alone and exchange what they learnt every few steps.

A factory takes the exchange first, with its compressor and memory; its own arguments
come from the spec string.
"""

from collections.abc import Callable

from jaxcomp.core.specs import Call, build
from jaxcomp.core.types import Exchange, Mixer
from jaxcomp.mixers.local.diloco import diloco
from jaxcomp.mixers.local.local_sgd import local_sgd
from jaxcomp.mixers.local.sparse_loco import sparse_loco

__all__ = ["REGISTRY", "make"]

REGISTRY: dict[str, Callable[..., Mixer]] = {
    "diloco": diloco,
    "local_sgd": local_sgd,
    "sparse_loco": sparse_loco,
}


def make(spec: str | Call, exchange: Exchange) -> Mixer:
    """Build a local-update method around an exchange.

    Example:
      >>> from jaxcomp import exchanges
      >>> make("diloco(h=4)", exchanges.make("gather", "sign")).name
      'diloco(h=4), gather(sign)'
    """
    return build(spec, REGISTRY, "mixer", exchange)

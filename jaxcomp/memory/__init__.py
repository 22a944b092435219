"""Memories: exchanges around an exchange, which keep what was not sent.

The factory of a memory takes the exchange as its first argument; all others come from
the spec string. A memory does not communicate itself. In `a | b`, b is given the tree
that a computes from the gradient.
"""

from jaxcomp.core.types import Exchange
from jaxcomp.memory._common import REGISTRY, make
from jaxcomp.memory.dgc import dgc
from jaxcomp.memory.ef21 import ef21, ef21_momentum
from jaxcomp.memory.error_feedback import error_feedback
from jaxcomp.memory.local_momentum import local_momentum
from jaxcomp.memory.shared_momentum import shared_momentum

__all__ = ["REGISTRY", "make"]


def _none(exchange: Exchange) -> Exchange:
    """No memory: what is not sent is lost."""
    return exchange


REGISTRY |= {
    "dgc": dgc,
    "ef21": ef21,
    "ef21_momentum": ef21_momentum,
    "error_feedback": error_feedback,
    "local_momentum": local_momentum,
    "none": _none,
    "shared_momentum": shared_momentum,
}

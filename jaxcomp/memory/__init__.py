"""Memories: what was not sent is kept and sent later. Exchange -> Exchange.

A factory takes the exchange first; its own arguments come from the spec string. No
memory communicates.
"""

from collections.abc import Callable

from jaxcomp.base import Exchange
from jaxcomp.memory.error_feedback import error_feedback
from jaxcomp.specs import Call, build

__all__ = ["REGISTRY", "make"]


def _none(exchange: Exchange) -> Exchange:
    """What is not sent is lost."""
    return exchange


REGISTRY: dict[str, Callable[..., Exchange]] = {
    "error_feedback": error_feedback,
    "none": _none,
}


def make(spec: str | Call, exchange: Exchange) -> Exchange:
    """Wrap an exchange in the memory that the spec string names.

    Example:
        >>> from jaxcomp import exchanges
        >>> make("error_feedback(decay=0.9)", exchanges.make("gather", "sign")).name
        'error_feedback(decay=0.9): gather(sign)'
    """
    return build(spec, REGISTRY, "memory", exchange)

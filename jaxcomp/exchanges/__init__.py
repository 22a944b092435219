"""Exchanges: the only place where gradients cross workers. One way, one file, one line.

A factory takes the lifted compressor and the axis name first; its own arguments come
from the spec string.
"""

from collections.abc import Callable

from jaxcomp import compressors
from jaxcomp.base import Compressor, Exchange
from jaxcomp.exchanges.aligned_psum import aligned_psum
from jaxcomp.exchanges.exact import exact
from jaxcomp.exchanges.gather import gather
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import Call, build

__all__ = ["REGISTRY", "make"]

REGISTRY: dict[str, Callable[..., Exchange]] = {
    "aligned_psum": aligned_psum,
    "exact": exact,
    "gather": gather,
}


def make(
    spec: str | Call | Exchange,
    compressor: str | Compressor = "none",
    scope: str | Plan = "per_leaf",
    axis: str = "workers",
) -> Exchange:
    """Build an exchange, without a memory, from spec strings.

    Example:
        >>> make("gather", "sign").name
        'gather(sign)'
    """
    if isinstance(spec, Exchange):
        return spec
    codec = lift(scope, compressors.make(compressor))
    return build(spec, REGISTRY, "exchange", codec, axis)

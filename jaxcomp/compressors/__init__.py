"""Compressors: each method has a file in this folder and a line in `REGISTRY`.

Spec strings, scopes, exchanges, memories and the tests of all methods read the table.
docs/extend.md shows how to add a method.
"""

from collections.abc import Callable

from jaxcomp.compressors.adaptive_threshold import adaptive_threshold
from jaxcomp.compressors.atomo import atomo
from jaxcomp.compressors.block_scaled import block_scaled
from jaxcomp.compressors.block_top_k import block_top_k
from jaxcomp.compressors.cast import cast
from jaxcomp.compressors.compose import compose
from jaxcomp.compressors.count_sketch import count_sketch
from jaxcomp.compressors.dgc_top_k import dgc_top_k
from jaxcomp.compressors.eden import eden
from jaxcomp.compressors.natural import natural
from jaxcomp.compressors.none import none
from jaxcomp.compressors.qsgd import qsgd
from jaxcomp.compressors.qsgd_sparse import qsgd_sparse
from jaxcomp.compressors.qsvd import qsvd
from jaxcomp.compressors.random_k import random_k
from jaxcomp.compressors.rotating_slice import rotating_slice
from jaxcomp.compressors.sign import sign
from jaxcomp.compressors.svd import svd
from jaxcomp.compressors.terngrad import terngrad
from jaxcomp.compressors.threshold import threshold
from jaxcomp.compressors.top_k import top_k
from jaxcomp.core.specs import Call, Pipe, build, error_at, parse
from jaxcomp.core.types import Compressor

__all__ = ["REGISTRY", "compose", "make"]

REGISTRY: dict[str, Callable[..., Compressor]] = {
    "adaptive_threshold": adaptive_threshold,
    "atomo": atomo,
    "block_scaled": block_scaled,
    "block_top_k": block_top_k,
    "cast": cast,
    "count_sketch": count_sketch,
    "dgc_top_k": dgc_top_k,
    "eden": eden,
    "natural": natural,
    "none": none,
    "qsgd": qsgd,
    "qsgd_sparse": qsgd_sparse,
    "qsvd": qsvd,
    "random_k": random_k,
    "rotating_slice": rotating_slice,
    "sign": sign,
    "svd": svd,
    "terngrad": terngrad,
    "threshold": threshold,
    "top_k": top_k,
}


def make(spec: str | Call | Pipe | Compressor) -> Compressor:
    """Build a compressor from its spec string.

    Args:
      spec: a string such as "top_k(keep=0.01)" or "top_k(keep=0.01) | cast", a parsed
        spec, or a compressor, which is returned as it is.

    Raises:
      SpecError: a name, an argument or a value is unknown; the message lists the valid
        ones.

    Example:
      >>> make("top_k(keep=0.01) | qsgd(levels=7, damped=True)").name
      'top_k(keep=0.01) | qsgd(levels=7, bucket=512, damped=True)'
    """
    if isinstance(spec, Compressor):
        return spec
    if isinstance(spec, str):
        spec = parse(spec)
    if isinstance(spec, Pipe):
        left, right = make(spec.left), make(spec.right)
        try:
            return compose(left, right)
        except ValueError as error:
            raise error_at(spec.left, str(error)) from error
    return build(spec, REGISTRY, "compressor")

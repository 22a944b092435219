"""Compressors: each method has a file in this folder and a line in `REGISTRY`.

Spec strings, scopes, exchanges, memories and the tests of all methods read the table.
docs/extend.md shows how to add a method.
"""

from jaxcomp.compressors._kit.making import REGISTRY, compose, compressor, make
from jaxcomp.compressors.adaptive_threshold import adaptive_threshold
from jaxcomp.compressors.atomo import atomo
from jaxcomp.compressors.block_scaled import block_scaled
from jaxcomp.compressors.block_top_k import block_top_k
from jaxcomp.compressors.cast import cast
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

__all__ = ["REGISTRY", "compose", "compressor", "make"]

REGISTRY |= {
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

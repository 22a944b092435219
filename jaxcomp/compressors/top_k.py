"""Top-k: send the largest elements and where they stand."""

import math

from jaxcomp import selection
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.indices import Code
from jaxcomp.coding.payloads import Sparse
from jaxcomp.compressors import _sparse
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import Keep
from jaxcomp.specs import method

__all__ = ["top_k"]


@method("keep")
def top_k(name: str, keep: Keep = 0.01, index: Code = "auto") -> Compressor:
    """Keep the k = round(keep * n) elements of largest magnitude, at least one.

    C(x)_i = x_i where |x_i| is among the k largest, else 0. Of all k-sparse vectors it
    is the nearest to x, and |x - C(x)|^2 <= (1 - k/n) |x|^2. Biased: use a memory. A
    NaN counts as largest, so it is sent and seen. Places go at log2(n/k) + 2 bits.

    Args:
      keep: fraction of the elements KEPT, in (0, 1].
      index: how places are sent: "elias_fano", "plain" integers, or "auto", the
        smaller of both.

    Example:
        >>> import jax.numpy as jnp
        >>> c = top_k(keep=0.5)
        >>> x = jnp.array([1.0, -4.0, 2.0, 0.5])
        >>> payload, _ = c.compress(x, (), None)
        >>> c.decompress(payload, x)
        Array([ 0., -4.,  2.,  0.], dtype=float32)

    References:
      Aji and Heafield, Sparse Communication for Distributed Gradient Descent,
      arXiv:1704.05021, 2017. Stich et al., Sparsified SGD with Memory,
      arXiv:1809.07599, 2018.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Sparse, State]:
        flat = x.reshape(-1)
        chosen = selection.largest(flat, most=_sparse.kept(flat.size, keep))
        return _sparse.send(flat, chosen.places, index), state

    def kept(spec: Spec) -> int:
        return _sparse.kept(math.prod(spec.shape), keep)

    return compressor(
        name,
        compress=compress,
        decompress=_sparse.decompress,
        accumulate=_sparse.accumulate,
        ideal_bits=lambda spec: _sparse.ideal_bits(spec, kept(spec)),
        contraction=lambda spec: kept(spec) / math.prod(spec.shape),
        unbiased=False,
        support=kept,
    )

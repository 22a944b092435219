"""Top-k: send the elements of largest magnitude and their places."""

import functools

from jaxcomp.compressors._kit.making import Keep, kept, sparsifier
from jaxcomp.compressors._kit.segments import Segments, send, send_rows
from jaxcomp.compressors._kit.selection import largest, largest_of_each
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.coding.payloads import Sparse
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method("keep")
def top_k(name: str, keep: Keep = 0.01, index: Code = "auto") -> Compressor:
    """Keep the k = round(keep * n) elements of largest magnitude, at least one.

    C(x)_i = x_i if |x_i| is among the k largest magnitudes, else 0. No other vector
    with k nonzero elements is nearer to x, and |x - C(x)|^2 <= (1 - k/n) |x|^2. The
    method is biased: use it with a memory. A NaN counts as the largest magnitude, so it
    is sent and can be detected. A place takes about log2(n/k) + 2 bits.

    Args:
      keep: fraction of the elements that is KEPT, in (0, 1].
      index: how places are coded: "elias_fano", "plain" integers, or "auto", which
        takes the smaller of the two.

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

    capacity = functools.partial(kept, keep=keep)

    def compress(x: Array, state: State, key: Array) -> tuple[Sparse, State]:
        flat = x.reshape(-1)
        chosen = largest(flat, most=capacity(flat.size))
        return send(flat, chosen.places, index), state

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Sparse:
        chosen = largest_of_each(rows, segments, [*map(capacity, segments.sizes)])
        return send_rows(rows, segments, chosen.places, index)

    def contraction(spec: Spec) -> float:
        return capacity(spec.size) / spec.size

    return sparsifier(name, compress, compress_rows, capacity, contraction, index)

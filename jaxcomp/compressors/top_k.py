"""Top-k: send the elements of largest magnitude and their places."""

from jaxcomp.compressors._kit import selection, sparse
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.compressors._kit.selection import largest_of_each
from jaxcomp.compressors._kit.sparse import Keep
from jaxcomp.core.coding.indices import Code
from jaxcomp.core.coding.payloads import Sparse
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, State


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

    def room(size: int) -> int:
        return sparse.kept(size, keep)

    def compress(x: Array, state: State, key: Array) -> tuple[Sparse, State]:
        flat = x.reshape(-1)
        chosen = selection.largest(flat, most=room(flat.size))
        return sparse.send(flat, chosen.places, index), state

    def choose(rows: Array, segments: Segments, keys: Array) -> Sparse:
        most = [room(size) for size in segments.sizes]
        chosen = largest_of_each(rows, segments, most)
        return sparse.send_rows(rows, segments, chosen.places, index)

    one = sparse.sparsifier(
        name, compress, room, contraction=lambda spec: room(spec.size) / spec.size
    )
    return sparse.with_segments(one, choose, index)

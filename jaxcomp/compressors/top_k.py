"""Top-k: send the largest elements and where they stand."""

import math
import numbers

import jax
import jax.numpy as jnp

from jaxcomp.base import Array, Compressor, Spec, State, compressor
from jaxcomp.payloads import Sparse, index_dtype

__all__ = ["check_keep", "kept", "show_keep", "subset_bits", "top_k"]


def top_k(keep: float = 0.01) -> Compressor:
    """Keep the k = round(keep * n) elements of largest magnitude, at least one.

    C(x)_i = x_i where |x_i| is among the k largest, else 0. Of all k-sparse vectors it
    is the nearest to x, and |x - C(x)|^2 <= (1 - k/n) |x|^2. Biased: use a memory. A
    NaN counts as largest, so it is sent and seen.

    Args:
      keep: fraction of the elements KEPT, in (0, 1].

    Example:
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
    check_keep(keep)

    def compress(x: Array, state: State, key: Array) -> tuple[Sparse, State]:
        flat = x.reshape(-1)
        _, indices = jax.lax.top_k(jnp.abs(flat), kept(flat.size, keep))
        return Sparse(flat[indices], indices.astype(index_dtype(flat.size))), state

    def accumulate(total: Array, payload: Sparse) -> Array:
        flat = (
            total.reshape(-1)
            .at[payload.indices]
            .add(payload.values.astype(total.dtype), unique_indices=True)
        )
        return flat.reshape(total.shape)

    def decompress(payload: Sparse, spec: Spec) -> Array:
        return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)

    def ideal_bits(spec: Spec) -> float:
        n = math.prod(spec.shape)
        k = kept(n, keep)
        return k * jnp.dtype(spec.dtype).itemsize * 8 + subset_bits(n, k)

    def contraction(spec: Spec) -> float:
        n = math.prod(spec.shape)
        return kept(n, keep) / n

    return compressor(
        f"top_k(keep={show_keep(keep)})",
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=False,
    )


def check_keep(keep: float) -> None:
    """Refuse a `keep` that is not a fraction: other tools count what they DROP."""
    if not isinstance(keep, numbers.Real) or not 0 < keep <= 1:
        raise ValueError(f"keep is the fraction kept, in (0, 1], not {keep!s}")


def show_keep(keep: float) -> str:
    """The shortest text that gives the same fraction again: names rebuild a method.

    Example:
        >>> show_keep(0.01), show_keep(1.0), show_keep(1 / 3)
        ('0.01', '1', '0.3333333333333333')
    """
    return repr(float(keep)).removesuffix(".0")


def kept(size: int, keep: float) -> int:
    """Number of elements kept of `size`: round(keep * size), at least one.

    Example:
        >>> kept(1000, 0.01), kept(3, 0.01), kept(100, 0.07)
        (10, 1, 7)
    """
    return min(size, max(1, round(keep * size)))


def subset_bits(n: int, k: int) -> float:
    """log2 of the number of k-subsets of n places.

    Example:
        >>> round(subset_bits(4, 2), 3)  # six subsets
        2.585
    """
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log / math.log(2)

"""QSVD: singular triples with quantised vectors."""

import math
from typing import NamedTuple

import jax

from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.payloads import Quantized
from jaxcomp.compressors import _matrices
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._matrices import Factors
from jaxcomp.compressors.atomo import atomo
from jaxcomp.compressors.qsgd import Levels, Norm, qsgd
from jaxcomp.compressors.svd import svd
from jaxcomp.specs import Count, method

__all__ = ["QuantizedFactors", "qsvd"]


class QuantizedFactors(NamedTuple):
    """Left and right singular vectors, each with a step size of its own."""

    left: Quantized
    right: Quantized


@method("rank", "levels", "norm", "unbiased")
def qsvd(
    name: str,
    rank: Count = 4,
    levels: Levels = 127,
    norm: Norm = "max",
    unbiased: bool = False,
) -> Compressor:
    """Send `rank` singular triples with both vectors rounded as `qsgd` does.

    C(A) = sum_i Q(s_i u_i / p_i) Q'(v_i)^T over the triples of `svd` (p_i = 1), or over
    those that `atomo` draws (unbiased: Q and Q' are independent). Each vector is a
    bucket, so singular values are in the step sizes and exact. With variances w of Q
    and w' of Q', 1 + v = (1 + w)(1 + w'), and delta the contraction of `svd`,
    E|A - C(A)|^2 <= (1 - delta (1 - v)) |A|^2; drawn, 1 + the variance of `atomo` is
    multiplied by 1 + v. A tensor too small for pairs to pay is rounded as it is.

    Args:
      rank: number of triples.
      levels: positive levels of an element.
      norm: "max" or "l2" of a vector; with levels=1 "max" makes it ternary.
      unbiased: draw the triples. With a memory leave it off.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxcomp import nbits
        >>> x = jnp.ones((128, 64))
        >>> c = qsvd(rank=1)
        >>> payload, _ = c.compress(x, (), jax.random.key(0))
        >>> nbits(payload)  # 8 bits an element and two step sizes
        1600

    References:
      Wang et al., ATOMO: Communication-efficient Learning via Atomic Sparsification,
      arXiv:1806.04090, 2018 (its code has the combination). Alistarh et al., QSGD:
      Communication-Efficient SGD via Gradient Quantization and Encoding,
      arXiv:1610.02132, 2017.
    """
    triples = atomo(rank) if unbiased else svd(rank)
    whole = qsgd(levels=levels, bucket=None, norm=norm)

    def of_rows(length: int) -> tuple[Compressor, Spec]:
        """What rounds `rank` vectors, each for itself, and their spec."""
        spec = jax.ShapeDtypeStruct((rank, length), "float32")
        return qsgd(levels=levels, bucket=length, norm=norm), spec

    def parts(spec: Spec) -> tuple[tuple[Compressor, Spec], tuple[Compressor, Spec]]:
        long, short = max(_matrices.sides(spec.shape)), _matrices.short_side(spec.shape)
        return of_rows(long), of_rows(short)

    def compress(
        x: Array, state: State, key: Array
    ) -> tuple[QuantizedFactors | Quantized, State]:
        triples_key, left_key, right_key = jax.random.split(key, 3)
        if not _matrices.pays(x.shape, rank):
            return whole.compress(x, (), left_key)[0], state
        factors, _ = triples.compress(x.astype("float32"), (), triples_key)
        (left, _), (right, _) = parts(x)
        return QuantizedFactors(
            left.compress(factors.values, (), left_key)[0],
            right.compress(factors.basis, (), right_key)[0],
        ), state

    def decompress(payload: QuantizedFactors | Quantized, spec: Spec) -> Array:
        if isinstance(payload, Quantized):
            return whole.decompress(payload, spec)
        left, right = (
            rounding.decompress(part, part_spec)
            for (rounding, part_spec), part in zip(parts(spec), payload, strict=True)
        )
        return _matrices.decompress(Factors(left, right), spec, bounded=not unbiased)

    def ideal_bits(spec: Spec) -> float:
        if not _matrices.pays(spec.shape, rank):
            return whole.ideal_bits(spec)
        return sum(rounding.ideal_bits(part) for rounding, part in parts(spec))

    def contraction(spec: Spec) -> float | None:
        if not _matrices.pays(spec.shape, rank):
            return whole.contraction(spec)
        outer = triples.contraction(spec)
        deltas = [rounding.contraction(part) for rounding, part in parts(spec)]
        if outer is None or None in deltas:
            return None
        factor = math.prod(2 - delta for delta in deltas if delta is not None)
        delta = 2 - (2 - outer) * factor if unbiased else outer * (2 - factor)
        return delta if delta > 0 else None

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
    )

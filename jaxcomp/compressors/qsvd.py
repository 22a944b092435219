"""QSVD: send singular triples whose vectors are quantised."""

import math
from typing import NamedTuple

import jax

from jaxcomp.compressors._kit import matrices
from jaxcomp.compressors._kit.making import compressor
from jaxcomp.compressors._kit.matrices import Factors
from jaxcomp.compressors.atomo import atomo
from jaxcomp.compressors.qsgd import Levels, Norm, qsgd
from jaxcomp.compressors.svd import svd
from jaxcomp.core.coding.payloads import Quantized
from jaxcomp.core.specs import Count, method
from jaxcomp.core.types import Array, Compressor, Payload, Spec, State


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
    """Send `rank` singular triples, with both vectors rounded by `qsgd`.

    C(A) = sum_i Q(s_i u_i / p_i) Q'(v_i)^T. The biased method takes the triples of
    `svd`, with p_i = 1. The unbiased one draws them as `atomo` does; Q and Q' are
    independent. Each vector is a bucket of its own, so the step sizes contain the
    singular values, without error. Let w and w' be the variances of Q and Q', and
    1 + v = (1 + w)(1 + w'). Then E|A - C(A)|^2 <= (1 - delta (1 - v)) |A|^2 with the
    contraction delta of `svd`. For drawn triples, 1 + the variance of `atomo` is
    multiplied by 1 + v. A tensor that is smaller than its triples is rounded itself.

    Args:
      rank: number of triples.
      levels: number of positive levels of an element.
      norm: "max" or "l2". With "max" and levels=1 the vectors are ternary.
      unbiased: draw the triples at random. Leave this off if a memory is used.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxcomp import nbits
      >>> x = jnp.ones((128, 64))
      >>> c = qsvd(rank=1)
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> nbits(payload)  # 8 bits for each element, and two step sizes
      1600

    References:
      Wang et al., ATOMO: Communication-efficient Learning via Atomic Sparsification,
      arXiv:1806.04090, 2018 (its published code has this method). Alistarh et al.,
      QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding,
      arXiv:1610.02132, 2017.
    """
    triples = atomo(rank) if unbiased else svd(rank)
    whole = qsgd(levels=levels, bucket=None, norm=norm)

    def parts(spec: Spec) -> list[tuple[Compressor, Spec]]:
        """What rounds the left and the right singular vectors, and their specs."""
        lengths = max(matrices.sides(spec.shape)), matrices.short_side(spec.shape)
        each = [qsgd(levels=levels, bucket=n, norm=norm) for n in lengths]
        specs = [jax.ShapeDtypeStruct((rank, n), "float32") for n in lengths]
        return [*zip(each, specs, strict=True)]

    def compress(x: Array, state: State, key: Array) -> tuple[Payload, State]:
        triples_key, left_key, right_key = jax.random.split(key, 3)
        if not matrices.pays(x.shape, rank):
            return whole.compress(x, (), left_key)[0], state
        factors, _ = triples.compress(x.astype("float32"), (), triples_key)
        (left, _), (right, _) = parts(x)
        rounded, _ = left.compress(factors.values, (), left_key)
        basis, _ = right.compress(factors.basis, (), right_key)
        return QuantizedFactors(rounded, basis), state

    def decompress(payload: QuantizedFactors | Quantized, spec: Spec) -> Array:
        if isinstance(payload, Quantized):
            return whole.decompress(payload, spec)
        pairs = zip(parts(spec), payload, strict=True)
        left, right = (c.decompress(part, its_spec) for (c, its_spec), part in pairs)
        return matrices.decompress(Factors(left, right), spec, bounded=not unbiased)

    def ideal_bits(spec: Spec) -> float:
        if not matrices.pays(spec.shape, rank):
            return whole.ideal_bits(spec)
        return sum(rounding.ideal_bits(part) for rounding, part in parts(spec))

    def contraction(spec: Spec) -> float | None:
        if not matrices.pays(spec.shape, rank):
            return whole.contraction(spec)
        deltas = [rounding.contraction(part) for rounding, part in parts(spec)]
        return _of_products(triples.contraction(spec), deltas, unbiased)

    return compressor(
        name, compress, decompress, ideal_bits, contraction, unbiased=unbiased
    )


def _of_products(
    outer: float | None, deltas: list[float | None], unbiased: bool
) -> float | None:
    """The contraction, from those of the triples and of the vectors' rounding."""
    if outer is None or None in deltas:
        return None
    factor = math.prod(2 - delta for delta in deltas if delta is not None)
    delta = 2 - (2 - outer) * factor if unbiased else outer * (2 - factor)
    return delta if delta > 0 else None

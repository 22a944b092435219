"""TernGrad: round each element to -1, 0 or 1 times the largest magnitude."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.making import compressor, of_many
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import complete, pack_symbols, unpack_symbols
from jaxcomp.core.coding.payloads import Quantized
from jaxcomp.core.specs import Clip, Count, method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method()
def terngrad(
    name: str, clip: Clip | None = None, bucket: Count | None = None
) -> Compressor:
    """Send m sgn(x_i) with probability |x_i| / m, else zero; m is max |x|.

    E[C(x)] = x up to 2^-24 m + 2^-22 |x_i| in element i, and E|x - C(x)|^2 =
    m |x|_1 - |x|_2^2 <= (sqrt(n) - 1) / 2 |x|^2. Elements can be clipped to c times the
    root mean square of x. That makes m and the variance smaller, and the result biased.
    Five symbols share a byte, so each takes 1.6 bits.

    Args:
      clip: c; None does not clip. The paper uses 2.5.
      bucket: number of elements that share m; None takes the whole tensor as one
        bucket.

    Example:
      >>> import jax
      >>> c = terngrad()
      >>> x = jnp.array([2.0, 0.0, -2.0])
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> c.decompress(payload, x), payload.packed.shape
      (Array([ 2.,  0., -2.], dtype=float32), (1,))

    References:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed
      Deep Learning, arXiv:1705.07878, 2017.
    """

    def measured(
        peaks: Array, norms: Callable[[Array], Array], counts: Array
    ) -> tuple[Array, Array]:
        """For each bucket a factor by which its elements are multiplied, and m."""
        scales = buckets.factors(peaks)
        units = peaks * scales
        if clip is not None:
            units = jnp.minimum(units, clip * (norms(scales) / jnp.sqrt(counts)))
        return scales, units

    def compress(x: Array, state: State, key: Array) -> tuple[Quantized, State]:
        flat = x.reshape(-1)
        norms = functools.partial(buckets.norms, flat, bucket)
        counts = buckets.counts(flat.size, bucket)
        scales, units = measured(buckets.peaks(flat, bucket), norms, counts)
        values = complete(flat, 3)
        draws = prng.uniform(prng.seed_of(key), values.shape)
        symbols = buckets.to_levels(values, bucket, scales, units, 1, draws)
        return Quantized(units / scales, pack_symbols(symbols, 3)), state

    def decompress(payload: Quantized, spec: Spec) -> Array:
        symbols = unpack_symbols(payload.packed, 3, spec.size)
        return buckets.from_levels(symbols, bucket, payload.units, 1)

    def ideal_bits(spec: Spec) -> float:
        return spec.size * math.log2(3) + 32 * buckets.rows(spec.size, bucket)

    def contraction(spec: Spec) -> float | None:
        delta = (3 - math.sqrt(min(bucket or spec.size, spec.size))) / 2
        return delta if clip is None and delta > 0 else None

    one = compressor(
        name, compress, decompress, ideal_bits, contraction, unbiased=clip is None
    )

    def compress_rows(rows: Array, segments: Segments, keys: Array) -> Quantized:
        shares = buckets.Shares(segments, by_tensor=bucket is None)
        norms = functools.partial(shares.norms, rows)
        scales, units = measured(shares.peaks(rows), norms, shares.counts())
        symbols = shares.to_levels(rows, scales, units, 1, keys)
        return Quantized(units / scales, buckets.packed(symbols, 3, segments))

    def decompress_rows(payload: Quantized, segments: Segments, dtype: Any) -> Array:
        shares = buckets.Shares(segments, by_tensor=bucket is None)
        symbols = buckets.unpacked(payload.packed, 3, segments)
        return shares.from_levels(symbols, payload.units, 1)

    return one._replace(
        segmented=of_many(one, compress_rows, decompress=decompress_rows, width=bucket)
    )

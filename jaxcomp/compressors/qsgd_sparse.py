"""QSGD with one level: the norm, and the signs of the few elements that got it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding import bitmaps, indices
from jaxcomp.coding.packing import pack, unpack
from jaxcomp.compressors._capped import overflow_figure
from jaxcomp.compressors._compiled import compressor
from jaxcomp.compressors._sparse import subset_bits
from jaxcomp.specs import method

__all__ = ["Chosen", "fine_uniform", "most_chosen", "qsgd_sparse"]


class Chosen(NamedTuple):
    """Elements that all have one magnitude, in a buffer of static size."""

    norm: Array  # [] float32
    signs: Array  # uint8: a bit for each, packed; a set bit is a negative sign
    indices: Array | indices.EliasFano  # ascending; n where fewer were chosen
    passed: Array  # [] uint32: how many were chosen, sent or not


@method()
def qsgd_sparse(name: str, index: indices.Code = "auto") -> Compressor:
    """Send the norm in place of x_i with probability |x_i| / |x|_2, else nothing.

    C(x)_i = |x|_2 sgn(x_i) b_i, b_i = 1 with probability |x_i| / |x|_2. Unbiased, with
    E|x - C(x)|^2 = |x|_1 |x|_2 - |x|_2^2 <= (sqrt(n) - 1) |x|_2^2. Chances are compared
    with 64 random bits: the mean is off by less than 2^-64 |x|_2 + 2^-22 |x_i|.

    At most sqrt(n) elements are expected; there is room for sqrt(n) + 8 n^(1/4) + 8.
    More have a probability below 10^-13 for every n and x, by a Chernoff bound; C(x)
    then has NaN, so that a guard sees it. The payload's `passed` tells their number,
    the figure `overflow` how many too many. A norm beyond the type's range decodes to
    NaN or infinity.

    Args:
      index: how places are sent; see `top_k`.

    Example:
        >>> c = qsgd_sparse()
        >>> x = jnp.array([0.0, -2.0, 0.0])  # an element alone is sure to be chosen
        >>> payload, _ = c.compress(x, (), jax.random.key(0))
        >>> c.decompress(payload, x)
        Array([ 0., -2.,  0.], dtype=float32)

    References:
      Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
      Encoding, arXiv:1610.02132, 2017.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Chosen, State]:
        flat = x.reshape(-1)
        most = most_chosen(flat.size)
        norm, factor, divisor = _norm(flat)
        # Three passes. Without the barrier XLA stores what they have in common.
        again, factor, divisor = jax.lax.optimization_barrier((flat, factor, divisor))
        chances = jnp.abs(again).astype(jnp.float32) * factor / divisor
        seed = noise.seed_of(key)
        # Words of seeds (a, b) and (a, a) are independent: b is in the former alone.
        high, low = (
            noise.words(jnp.stack([seed[0], b]), flat.size) for b in seed[::-1]
        )
        u = fine_uniform(high, low)
        # Not "less than": where chances are NaN, all elements are chosen and show it.
        words = bitmaps.to_words(~(u >= chances))
        passed = bitmaps.count(words)
        places = bitmaps.places(words, most, absent=flat.size)
        negative = flat.at[places].get(mode="fill", fill_value=0) < 0
        shown = jnp.where(passed > np.uint32(most), jnp.nan, norm)
        coded = indices.encode(places, flat.size + 1, index)
        return Chosen(shown, pack(negative, bits=1), coded, passed), state

    def accumulate(total: Array, payload: Chosen) -> Array:
        most = most_chosen(total.size)
        places = indices.decode(payload.indices, total.size + 1, most)
        negative = unpack(payload.signs, bits=1, size=most) == 1
        values = jnp.where(negative, -payload.norm, payload.norm).astype(total.dtype)
        flat = total.reshape(-1)
        added = flat.at[places].add(values, mode="drop", indices_are_sorted=True)
        return added.reshape(total.shape)

    def decompress(payload: Chosen, spec: Spec) -> Array:
        return accumulate(jnp.zeros(spec.shape, spec.dtype), payload)

    def ideal_bits(spec: Spec) -> float:
        """Of sqrt(n) elements, the most that are expected."""
        size = math.prod(spec.shape)
        count = math.isqrt(size)
        return 32 + count + subset_bits(size, count)

    def contraction(spec: Spec) -> float | None:
        delta = 2 - math.sqrt(math.prod(spec.shape))
        return delta if delta > 0 else None

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        accumulate=accumulate,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=True,
        support=lambda spec: most_chosen(math.prod(spec.shape)),
        figures=(overflow_figure(most_chosen),),
    )


def most_chosen(size: int) -> int:
    """Room for the chosen elements.

    The number N of independent events with mean m obeys
    P(N >= m + t) <= exp(-m h(t / m)), h(u) = (1 + u) ln(1 + u) - u, which grows with m.
    With m = sqrt(n) and t = 8 n^(1/4) + 8 that is below 10^-13 wherever the result is
    less than n.

    Example:
        >>> most_chosen(25_000_000)
        5574
    """
    return min(size, math.ceil(math.sqrt(size) + 8 * size**0.25 + 8))


def _norm(flat: Array) -> tuple[Array, Array, Array]:
    """|x|_2, a power of two that keeps squares in range, and the divisor that gives
    chances to |x| times this power.

    The norm is rounded to x's own type, so that what is sent is what chances are made
    with, and it is not below the largest element, whatever the sum was rounded to. The
    divisor is NaN where an element is not finite or the norm is out of range.
    """
    # This may lose a NaN (reductions by max do on some machines). The sum does not.
    peak = jnp.max(jnp.abs(flat)).astype(jnp.float32)
    factor = jnp.where(peak > 2.0**40, 2.0**-87, jnp.where(peak < 2.0**-40, 2.0**87, 1))
    again, factor = jax.lax.optimization_barrier((flat, factor))
    squares = jnp.sum(jnp.square(again.astype(jnp.float32) * factor))
    norm = (jnp.sqrt(squares) / factor).astype(flat.dtype).astype(jnp.float32)
    norm = jnp.where(norm < peak, peak, norm)  # and NaN stays
    divisor = jnp.where(jnp.isfinite(norm), norm * factor, jnp.nan)
    return norm, factor, jnp.where(divisor == 0, 1.0, divisor)


def fine_uniform(high: Array, low: Array) -> Array:
    """Numbers below 1 from pairs of random words: as fine as floats are, down to 2^-64.

    A comparison of a chance with 24 bits would lose all chances below 2^-24.

    Args:
      high: uint32.
      low: uint32; counts where `high` leaves room.

    Example:
        >>> fine_uniform(jnp.uint32(1 << 31), jnp.uint32(0))
        Array(0.49999997, dtype=float32)
    """
    # By half a step of the largest float below 1, so that none is rounded up to 1.
    below = np.float32((1 - 2.0**-24) * 2.0**-32)
    rest = low.astype(jnp.float32) * np.float32(2.0**-64)
    return high.astype(jnp.float32) * below + rest

"""QSGD with one level: send the norm, and the signs of a few random elements."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.making import compressor, subset_bits
from jaxcomp.compressors._kit.segments import add_at
from jaxcomp.compressors._kit.thresholds import overflow_figure
from jaxcomp.core import prng
from jaxcomp.core.coding import indices
from jaxcomp.core.coding.packing import pack, unpack
from jaxcomp.core.specs import method
from jaxcomp.core.types import Array, Compressor, Spec, State


class Chosen(NamedTuple):
    """Elements of the same magnitude, in a buffer of static size."""

    norm: Array  # [] float32
    signs: Array  # uint8: one bit for each, packed; a set bit is a minus
    indices: Array | indices.EliasFano  # ascending; n if fewer were chosen
    passed: Array  # [] uint32: how many were chosen, sent or not


@method()
def qsgd_sparse(name: str, index: indices.Code = "auto") -> Compressor:
    """Replace x_i by the norm with probability |x_i| / |x|_2, else by zero.

    C(x)_i = |x|_2 sgn(x_i) b_i with b_i = 1 with probability |x_i| / |x|_2, else 0. The
    method is unbiased with
    E|x - C(x)|^2 = |x|_1 |x|_2 - |x|_2^2 <= (sqrt(n) - 1) |x|_2^2. Probabilities are
    compared with 64 random bits, so the mean is exact up to 2^-64 |x|_2 + 2^-22 |x_i|.

    At most sqrt(n) elements are expected, and a payload has room for
    sqrt(n) + 8 n^(1/4) + 8. By a Chernoff bound more are chosen with a probability
    below 10^-13 for every n and x; C(x) then has NaN, so that a check for bad steps
    notices it. The field `passed` of the payload says how many were chosen, and the
    figure `overflow` how many of them found no room. A norm beyond the range of the
    dtype decodes to NaN or infinity.

    Args:
      index: how places are coded; see `top_k`.

    Example:
      >>> c = qsgd_sparse()
      >>> x = jnp.array([0.0, -2.0, 0.0])  # a single element is always chosen
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
        # Three passes over x. Without the barrier XLA would compute what they have in
        # common only once, and store it.
        again, factor, divisor = jax.lax.optimization_barrier((flat, factor, divisor))
        chances = jnp.abs(again).astype(jnp.float32) * factor / divisor
        seed = prng.seed_of(key)
        # The words of the seeds (a, b) and (a, a) are independent: only one has b.
        high, low = (prng.words(jnp.stack([seed[0], b]), flat.size) for b in seed[::-1])
        u = fine_uniform(high, low)
        # Not `u < chances`: if the chances are NaN, all elements have to be chosen, so
        # that the NaN is sent.
        words = indices.to_words(~(u >= chances))
        passed = indices.count(words)
        places = indices.places(words, most, absent=flat.size)
        negative = flat.at[places].get(mode="fill", fill_value=0) < 0
        shown = jnp.where(passed > np.uint32(most), jnp.nan, norm)
        coded = indices.encode(places, flat.size + 1, index)
        return Chosen(shown, pack(negative, bits=1), coded, passed), state

    def accumulate(total: Array, payload: Chosen) -> Array:
        most = most_chosen(total.size)
        places = indices.decode(payload.indices, total.size + 1, most)
        negative = unpack(payload.signs, bits=1, size=most) == 1
        values = jnp.where(negative, -payload.norm, payload.norm)
        return add_at(total, places, values, indices_are_sorted=True)

    def ideal_bits(spec: Spec) -> float:
        """The bits of sqrt(n) elements, the largest number that is expected."""
        count = math.isqrt(spec.size)
        return 32 + count + subset_bits(spec.size, count)

    def contraction(spec: Spec) -> float | None:
        delta = 2 - math.sqrt(spec.size)
        return delta if delta > 0 else None

    return compressor(
        name,
        compress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        accumulate=accumulate,
        support=lambda spec: most_chosen(spec.size),
        unbiased=True,
        figures=(overflow_figure(most_chosen),),
    )


def most_chosen(size: int) -> int:
    """The number of elements that a payload has room for.

    If the expected number of independent events is m, their number N obeys
    P(N >= m + t) <= exp(-m h(t / m)) with h(u) = (1 + u) ln(1 + u) - u. This bound
    grows with m. For m = sqrt(n) and t = 8 n^(1/4) + 8 it is below 10^-13 whenever the
    result is less than n.

    Example:
      >>> most_chosen(25_000_000)
      5574
    """
    return min(size, math.ceil(math.sqrt(size) + 8 * size**0.25 + 8))


def _norm(flat: Array) -> tuple[Array, Array, Array]:
    """|x|_2, a power of two, and a divisor: |x_i| * power / divisor is a probability.

    The power of two keeps squares in range. The norm is rounded to x's own dtype before
    probabilities are computed from it, because the rounded norm is what is sent. It is
    at least the largest magnitude, even if the sum was rounded down. The divisor is NaN
    if an element is not finite or the norm is out of range.
    """
    # On some machines a reduction by maximum loses a NaN. The sum below does not.
    peak = jnp.max(jnp.abs(flat)).astype(jnp.float32)
    factor = jnp.where(peak > 2.0**40, 2.0**-87, jnp.where(peak < 2.0**-40, 2.0**87, 1))
    again, factor = jax.lax.optimization_barrier((flat, factor))
    squares = jnp.sum(jnp.square(again.astype(jnp.float32) * factor))
    norm = (jnp.sqrt(squares) / factor).astype(flat.dtype).astype(jnp.float32)
    norm = jnp.where(norm < peak, peak, norm)  # a NaN stays
    divisor = jnp.where(jnp.isfinite(norm), norm * factor, jnp.nan)
    return norm, factor, jnp.where(divisor == 0, 1.0, divisor)


def fine_uniform(high: Array, low: Array) -> Array:
    """Uniform numbers below 1 from pairs of random words, with a resolution of 2^-64.

    Numbers of 24 random bits would never be below a probability of less than 2^-24.

    Args:
      high: uint32, the leading bits.
      low: uint32, the bits after these.

    Example:
      >>> fine_uniform(jnp.uint32(1 << 31), jnp.uint32(0))
      Array(0.49999997, dtype=float32)
    """
    # Smaller by half a step of the largest float below 1, so none is rounded up to 1.
    below = np.float32((1 - 2.0**-24) * 2.0**-32)
    rest = low.astype(jnp.float32) * np.float32(2.0**-64)
    return high.astype(jnp.float32) * below + rest

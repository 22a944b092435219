"""Spectral ATOMO: send random singular triples, without bias."""

import math
from typing import Literal

import jax.numpy as jnp

from jaxcomp.compressors._kit import matrices
from jaxcomp.compressors._kit.making import compressor
from jaxcomp.compressors._kit.matrices import Factors
from jaxcomp.core import prng
from jaxcomp.core.coding.payloads import Dense
from jaxcomp.core.specs import Count, method
from jaxcomp.core.types import Array, Compressor, Spec, State


@method("rank")
def atomo(
    name: str, rank: Count = 4, chance: Literal["optimal", "relative"] = "optimal"
) -> Compressor:
    """Send `rank` singular triples of the tensor as a matrix, drawn at random.

    C(A) = sum_{i in S} (1 / p_i) s_i u_i v_i^T, where triple i is in S with probability
    p_i = min(1, c s_i), and c is such that sum_i p_i = r. Of all unbiased methods that
    choose r triples on average this one has the least variance,
    sum_i s_i^2 (1 / p_i - 1) <= (min(m, n) / r - 1) |A|^2. Systematic sampling chooses
    exactly r triples: those at which the sum p_1 + ... + p_i exceeds u, u + 1,
    u + 2, ..., where u is uniform in [0, 1). Tensors become matrices as in `svd`.

    With chance="relative" p_i = s_i / s_1, the rule of the published code for rank 0.
    Then the number of triples is random, with the mean sum_i s_i / s_1, and often below
    r; a message has room for r of them all the same. Where the mean is above r, all p_i
    are made smaller such that it is r, so that nothing overflows and no bias arises.
    The variance is never below that of the optimal chances.

    Args:
      rank: r, the number of triples, or the most of them.
      chance: "optimal" or "relative".

    Example:
      >>> import jax
      >>> c = atomo(rank=2)
      >>> payload, _ = c.compress(jnp.eye(8), (), jax.random.key(0))
      >>> payload.values.shape, payload.basis.shape
      ((2, 8), (2, 8))
      >>> jnp.round(jnp.trace(c.decompress(payload, jnp.eye(8))), 4)
      Array(8., dtype=float32)

    References:
      Wang et al., ATOMO: Communication-efficient Learning via Atomic Sparsification,
      arXiv:1806.04090, 2018. Madow, On the theory of systematic sampling, II, Annals of
      Mathematical Statistics 20, 1949.
    """

    def compress(x: Array, state: State, key: Array) -> tuple[Factors | Dense, State]:
        if not matrices.pays(x.shape, rank):
            return Dense(x), state
        matrix, factor = matrices.in_range(matrices.fold(x))
        lengths, left, right = matrices.spectrum(matrix)
        order = jnp.argsort(lengths, descending=True)
        chances_of = relative_chances if chance == "relative" else chances
        p = chances_of(lengths[order], rank)
        offset = prng.uniform(prng.seed_of(key), ()).astype(p.dtype)
        drawn, expected = draw(p, rank, offset), jnp.sum(p)
        places, p = order[drawn], p[drawn]
        if chance == "relative":
            p = jnp.where(jnp.arange(rank, dtype=p.dtype) + offset < expected, p, 0)
        # A triple with probability zero has the singular value zero.
        scale = jnp.where(p > 0, 1 / jnp.where(p > 0, p, 1), 0)
        left = left[places] * scale[:, None]
        return matrices.send(left, right[places], factor, x), state

    def contraction(spec: Spec) -> float | None:
        if not matrices.pays(spec.shape, rank):
            return 1.0
        short = matrices.short_side(spec.shape)
        # s_1 sum_i s_i is largest where all s_i but the first are equal.
        relative = (1 + math.sqrt(short)) / 2 if chance == "relative" else 0
        delta = 2 - max(short / rank, relative)
        return delta if delta > 0 else None

    return compressor(
        name,
        compress,
        matrices.decompress,
        ideal_bits=lambda spec: matrices.ideal_bits(spec, rank),
        contraction=contraction,
        unbiased=True,
    )


def chances(lengths: Array, count: int) -> Array:
    """The probabilities p_i = min(1, c s_i) with sum_i p_i = count.

    Args:
      lengths: [n] s_i >= 0 in descending order.
      count: the sum, at most n. If fewer s_i are above zero, each of these gets 1.

    Example:
      >>> chances(jnp.array([8.0, 2.0, 1.0, 1.0]), 2)
      Array([1.  , 0.5 , 0.25, 0.25], dtype=float32)
    """
    # If the first k probabilities are 1, the others share count - k in proportion.
    rest = jnp.cumsum(lengths[::-1])[::-1][:count]
    left = jnp.arange(count, 0, -1, dtype=lengths.dtype)
    slopes = left / jnp.where(rest > 0, rest, jnp.inf)
    fits = slopes * lengths[:count] <= 1
    # If only 1 is left to share, no probability exceeds 1 except by rounding.
    capped = jnp.where(jnp.any(fits), jnp.argmax(fits), count - 1)
    is_capped = (jnp.arange(lengths.size) < capped) & (lengths > 0)
    return jnp.where(is_capped, 1, jnp.minimum(slopes[capped] * lengths, 1))


def relative_chances(lengths: Array, most: int) -> Array:
    """The probabilities p_i = min(1 / s_1, most / sum_j s_j) s_i.

    Args:
      lengths: [n] s_i >= 0 in descending order.
      most: limit of their sum.

    Example:
      >>> relative_chances(jnp.array([8.0, 2.0, 1.0, 1.0]), 2)
      Array([1.   , 0.25 , 0.125, 0.125], dtype=float32)
    """
    unit = jnp.maximum(lengths[0], jnp.sum(lengths) / most)
    return lengths / jnp.where(unit > 0, unit, 1)


def draw(chances: Array, count: int, offset: Array) -> Array:
    """Systematic sampling: `count` places, place i with probability chances[i].

    Args:
      chances: [n] in [0, 1] in descending order; their sum is `count`, or less, and
        then only the places of the first ticks are meant.
      count: number of places.
      offset: [] uniform in [0, 1).

    Example:
      >>> draw(jnp.array([1.0, 0.5, 0.5]), 2, jnp.float32(0.7))
      Array([0, 2], dtype=int32)
    """
    # Places with probability 1 are left out of the sums, which are then more exact.
    sure = jnp.sum(chances == 1)
    ranks = jnp.arange(count, dtype=sure.dtype)
    ends = jnp.cumsum(jnp.where(chances < 1, chances, 0))
    ticks = (ranks - sure).astype(chances.dtype) + offset
    # If the sum was rounded down, the last tick may lie beyond it, and means the last
    # place with a chance. If no such place is left, the last place of all is returned;
    # its chance is zero, so the caller multiplies it by zero.
    drawn = jnp.sum(chances > 0)
    last = jnp.where(drawn > sure, drawn, chances.size) - 1
    found = jnp.searchsorted(ends, ticks, side="right")
    found = jnp.minimum(found, last.astype(found.dtype))
    return jnp.where(ranks < sure, ranks.astype(found.dtype), found)

"""Block scaling: a few bits for each element and a power of two for each block."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit import buckets
from jaxcomp.compressors._kit.making import compressor
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import complete, pack_symbols, unpack_symbols
from jaxcomp.core.specs import Count, method
from jaxcomp.core.types import Array, Compressor, Spec, State

_NAN = 255


class BlockScaled(NamedTuple):
    """Elements as multiples of a power of two that the elements of a block share."""

    exponents: Array  # [blocks] uint8; 255 means NaN
    packed: Array  # uint8


class _Grid(NamedTuple):
    """The numbers of a symbol: zero, `levels` positive ones and their negatives."""

    levels: int
    largest: float
    reach: float  # numbers between `largest` and this are rounded to `largest`
    error: Callable[[int, bool], float]  # (elements, nearest) -> bound of |x - C(x)|^2


@method("bits", "block")
def block_scaled(
    name: str,
    bits: Literal[4, 8] = 8,
    block: Count = 32,
    rounding: Literal["nearest", "stochastic"] = "nearest",
) -> Compressor:
    """Round the elements of a block to a power of two times the numbers of a grid.

    C(x)_i = 2^e q(x_i / 2^e), where q rounds to the grid and e is the smallest exponent
    for which the largest magnitude of the block does not exceed the grid. The grid is
    -127 to 127 for 8 bits, and 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (E2M1)
    for 4 bits. Rounding to the nearest is biased and a contraction: with blocks of 32
    elements the error is at most 0.0020 |x|^2 for 8 bits and 0.155 |x|^2 for 4 bits.
    Stochastic rounding is unbiased up to 2^-24 of a step, with a variance of at most
    0.0020 |x|^2 and 0.257 |x|^2. The exponents add 8 / block bits to each element.

    Args:
      bits: bits of each element, 8 or 4.
      block: number of neighbouring elements that share an exponent.
      rounding: "nearest" or "stochastic".

    Example:
      >>> c = block_scaled(bits=4)
      >>> x = jnp.array([6.0, -2.4, 0.6, 0.2])
      >>> payload, _ = c.compress(x, (), None)
      >>> c.decompress(payload, x)
      Array([ 6. , -2. ,  0.5,  0. ], dtype=float32)

    References:
      Rouhani et al., Microscaling Data Formats for Deep Learning, arXiv:2310.10537,
      2023. There the largest element may exceed the grid by up to a quarter.
    """
    grid = _GRIDS[bits]
    levels = grid.levels
    alphabet = 2 * levels + 1
    nearest = rounding == "nearest"

    def compress(x: Array, state: State, key: Array) -> tuple[BlockScaled, State]:
        flat = x.reshape(-1)
        reach = grid.reach if nearest else grid.largest
        exponents = _exponents(buckets.peaks(flat, block), reach)
        first, second = _powers(-_steps(exponents, grid), exponents)
        values = complete(flat, alphabet).astype(jnp.float32)
        values = values * buckets.spread(first, block, values.size)
        values = values * buckets.spread(second, block, values.size)
        draws = None
        if not nearest:
            draws = prng.uniform(prng.seed_of(key), values.shape)
        places = buckets.round_to(_place(values, bits), levels, draws)
        symbols = (places + levels).astype(jnp.uint8)
        return BlockScaled(exponents, pack_symbols(symbols, alphabet)), state

    def decompress(payload: BlockScaled, spec: Spec) -> Array:
        values = _value(unpack_symbols(payload.packed, alphabet, spec.size), bits)
        exponents = payload.exponents
        first, second = _powers(_steps(exponents, grid), exponents)
        values = values * buckets.spread(first, block, spec.size)
        values = values * buckets.spread(second, block, spec.size)
        # Numbers near the largest may be rounded beyond it.
        largest = min(float(jnp.finfo(d).max) for d in (spec.dtype, jnp.float32))
        return jnp.clip(values, -largest, largest)

    def ideal_bits(spec: Spec) -> float:
        return spec.size * math.log2(alphabet) + 8 * buckets.rows(spec.size, block)

    def contraction(spec: Spec) -> float | None:
        delta = 1 - grid.error(min(block, spec.size), nearest)
        return delta if delta > 0 else None

    return compressor(
        name, compress, decompress, ideal_bits, contraction, unbiased=not nearest
    )


def _integer_error(m: int, nearest: bool) -> float:
    """The bound on the grid of 8 bits, where errors are at most half a step.

    The largest element is more than half of `reach`, and an element whose error is half
    a step is itself at least half a step.
    """
    if nearest:
        return m / 4 / (63.75**2 + (m - 1) / 4)
    return m / 4 / 63.5**2


def _e2m1_error(m: int, nearest: bool) -> float:
    """The bound on the grid of 4 bits.

    Relative to an element, the error is largest for the largest element at 3.5 (an
    error of 0.5) or at 5 (an error of 1), and for the others at 0.25 (an error of
    0.25). The variance of stochastic rounding is at most 1/16 below 2, and M^2 / 24 for
    an element M of at least 3.
    """
    if nearest:
        others = (m - 1) / 16
        return max((0.25 + others) / (3.5**2 + others), (1 + others) / (25 + others))
    return 1 / 24 + (m - 1) / 16 / 9


_GRIDS = {
    8: _Grid(levels=127, largest=127.0, reach=127.5, error=_integer_error),
    4: _Grid(levels=7, largest=6.0, reach=7.0, error=_e2m1_error),
}


def _place(x: Array, bits: int) -> Array:
    """The place of x on the grid, linear between neighbours, so it can be rounded."""
    if bits == 8:
        return x
    size = jnp.abs(x)
    place = jnp.where(size < 4, size + 2, size / 2 + 4)
    place = jnp.where(size < 2, 2 * size, place)
    return jnp.where(x < 0, -place, place)


def _value(symbols: Array, bits: int) -> Array:
    """The number of the grid that a symbol stands for."""
    if bits == 8:
        return symbols.astype(jnp.float32) - 127
    half = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    table = np.array([*(-v for v in reversed(half)), 0.0, *half, 0.0], np.float32)
    return jnp.asarray(table)[symbols]


def _exponents(peaks: Array, reach: float) -> Array:
    """The least e with peak <= reach 2^e, counted from -126: 0 to 254, or NaN."""
    bits = jax.lax.bitcast_convert_type(peaks, jnp.uint32)
    edge = np.float32(reach).view(np.uint32) & np.uint32(0x7FFFFF)
    beyond = (bits & np.uint32(0x7FFFFF)) > edge
    exponents = (bits >> np.uint32(23)) + beyond.astype(jnp.uint32)
    exponents = jnp.maximum(exponents, np.uint32(1)) - np.uint32(1)
    exponents = jnp.where(jnp.isfinite(peaks), exponents, np.uint32(_NAN))
    return exponents.astype(jnp.uint8)


def _steps(exponents: Array, grid: _Grid) -> Array:
    """The exponent e for which the number 1 of the grid means 2^e."""
    return exponents.astype(jnp.int32) - (126 + math.floor(math.log2(grid.largest)))


def _powers(steps: Array, exponents: Array) -> tuple[Array, Array]:
    """Two factors of 2^e, which may lie below 2^-126; NaN for a block with a NaN."""
    half = steps >> 1

    def power(e: Array) -> Array:
        bits = (127 - e).astype(jnp.uint32) << np.uint32(23)
        inverse = jax.lax.bitcast_convert_type(bits, jnp.float32)
        # A division, for the reason in `_buckets.factors`.
        return 1 / jnp.where(exponents == _NAN, jnp.nan, inverse)

    return power(half), power(steps - half)

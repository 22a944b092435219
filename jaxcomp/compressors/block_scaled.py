"""Block scaling: few bits for each element, a power of two for each short block."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import noise
from jaxcomp.base import Array, Compressor, Spec, State
from jaxcomp.coding.packing import complete, pack_symbols, unpack_symbols
from jaxcomp.compressors import _buckets
from jaxcomp.compressors._compiled import compressor
from jaxcomp.specs import Count, method

__all__ = ["BlockScaled", "block_scaled"]

_NAN = 255


class BlockScaled(NamedTuple):
    """Elements as multiples of a power of two that a block shares."""

    exponents: Array  # [blocks] uint8; 255 stands for NaN
    packed: Array  # uint8


class _Grid(NamedTuple):
    """Numbers that bits stand for, at the places 0 to `levels` and mirrored."""

    levels: int
    largest: float
    reach: float  # still as near to the largest as steps are wide: rounded to it
    error: Callable[[int, bool], float]  # of |x|^2: (elements, nearest) -> bound


@method("bits", "block")
def block_scaled(
    name: str,
    bits: Literal[4, 8] = 8,
    block: Count = 32,
    rounding: Literal["nearest", "stochastic"] = "nearest",
) -> Compressor:
    """Round the elements of a block to a grid, times a power of two that fits them.

    C(x)_i = 2^e q(x_i / 2^e), with the least e for which the block's largest magnitude
    stays on the grid of q: -127 to 127 for 8 bits, or 0, 0.5, 1, 1.5, 2, 3, 4, 6 and
    their negatives (E2M1) for 4. To the nearest it is biased and contracts: at 32
    elements the error is at most 0.0020 |x|^2 with 8 bits and 0.155 |x|^2 with 4.
    Stochastic rounding is unbiased up to 2^-24 of a step, and its variance is at most
    0.0020 |x|^2 and 0.257 |x|^2. The exponent adds 8 / block bits to each element.

    Args:
      bits: 8 or 4, for each element.
      block: neighbouring elements that share an exponent.
      rounding: "nearest" or "stochastic".

    Example:
        >>> c = block_scaled(bits=4)
        >>> x = jnp.array([6.0, -2.4, 0.6, 0.2])
        >>> payload, _ = c.compress(x, (), None)
        >>> c.decompress(payload, x)
        Array([ 6. , -2. ,  0.5,  0. ], dtype=float32)

    References:
      Rouhani et al., Microscaling Data Formats for Deep Learning, arXiv:2310.10537,
      2023. Its scales let the largest element overflow by up to a quarter.
    """
    grid = _GRIDS[bits]
    levels = grid.levels
    alphabet = 2 * levels + 1
    nearest = rounding == "nearest"

    def compress(x: Array, state: State, key: Array) -> tuple[BlockScaled, State]:
        flat = x.reshape(-1)
        reach = grid.reach if nearest else grid.largest
        exponents = _exponents(_buckets.peaks(flat, block), reach)
        first, second = _powers(-_steps(exponents, grid), exponents)
        values = complete(flat, alphabet).astype(jnp.float32)
        values = values * _buckets.spread(first, block, values.size)
        values = values * _buckets.spread(second, block, values.size)
        seed = None if nearest else noise.seed_of(key)
        places = _buckets.round_to(_place(values, bits), levels, seed)
        symbols = (places + levels).astype(jnp.uint8)
        return BlockScaled(exponents, pack_symbols(symbols, alphabet)), state

    def decompress(payload: BlockScaled, spec: Spec) -> Array:
        size = math.prod(spec.shape)
        symbols = unpack_symbols(payload.packed, alphabet, size)
        values = _value(symbols, bits)
        exponents = payload.exponents
        first, second = _powers(_steps(exponents, grid), exponents)
        values = values * _buckets.spread(first, block, size)
        values = values * _buckets.spread(second, block, size)
        # The largest number rounds to one that is not there.
        largest = min(float(jnp.finfo(d).max) for d in (spec.dtype, jnp.float32))
        values = jnp.clip(values, -largest, largest)
        return values.reshape(spec.shape).astype(spec.dtype)

    def ideal_bits(spec: Spec) -> float:
        size = math.prod(spec.shape)
        return size * math.log2(alphabet) + 8 * _buckets.rows(size, block)

    def contraction(spec: Spec) -> float | None:
        delta = 1 - grid.error(min(block, math.prod(spec.shape)), nearest)
        return delta if delta > 0 else None

    return compressor(
        name,
        compress=compress,
        decompress=decompress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=not nearest,
    )


def _integer_error(m: int, nearest: bool) -> float:
    """Errors are half a step at most. The largest is more than half of the reach.

    What errs by half a step is half a step long at least.
    """
    if nearest:
        return m / 4 / (63.75**2 + (m - 1) / 4)
    return m / 4 / 63.5**2


def _e2m1_error(m: int, nearest: bool) -> float:
    """The largest errs by 0.5 at 3.5 or by 1 at 5; the others by 0.25 at 0.25.

    Stochastic variances are at most 1/16 below 2, and M^2 / 24 at M from 3 on.
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
    """Where x stands on the grid; straight between neighbours, so rounding is there."""
    if bits == 8:
        return x
    size = jnp.abs(x)
    place = jnp.where(size < 4, size + 2, size / 2 + 4)
    place = jnp.where(size < 2, 2 * size, place)
    return jnp.where(x < 0, -place, place)


def _value(symbols: Array, bits: int) -> Array:
    """What stands on the grid at a place, counted from the lowest."""
    if bits == 8:
        return symbols.astype(jnp.float32) - 127
    half = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    table = np.array([*(-v for v in reversed(half)), 0.0, *half, 0.0], np.float32)
    return jnp.asarray(table)[symbols]


def _exponents(peaks: Array, reach: float) -> Array:
    """The least e with peak <= reach 2^e, less that of 2^-126: 0 to 254, or NaN."""
    bits = jax.lax.bitcast_convert_type(peaks, jnp.uint32)
    edge = np.float32(reach).view(np.uint32) & np.uint32(0x7FFFFF)
    beyond = (bits & np.uint32(0x7FFFFF)) > edge
    exponents = (bits >> np.uint32(23)) + beyond.astype(jnp.uint32)
    exponents = jnp.maximum(exponents, np.uint32(1)) - np.uint32(1)
    exponents = jnp.where(jnp.isfinite(peaks), exponents, np.uint32(_NAN))
    return exponents.astype(jnp.uint8)


def _steps(exponents: Array, grid: _Grid) -> Array:
    """e of the step 2^e: the number 1 of the grid."""
    return exponents.astype(jnp.int32) - (126 + math.floor(math.log2(grid.largest)))


def _powers(steps: Array, exponents: Array) -> tuple[Array, Array]:
    """2^e in two factors, as it may lie below 2^-126; NaN where a block is NaN."""
    half = steps >> 1

    def power(e: Array) -> Array:
        bits = (127 - e).astype(jnp.uint32) << np.uint32(23)
        inverse = jax.lax.bitcast_convert_type(bits, jnp.float32)
        # A division, for the reason in `_buckets.factors`.
        return 1 / jnp.where(exponents == _NAN, jnp.nan, inverse)

    return power(half), power(steps - half)

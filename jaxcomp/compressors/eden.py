"""EDEN: rotate at random, then round to the best levels for normal numbers."""

import functools
import math
import statistics
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors._kit.making import compressor
from jaxcomp.compressors._kit.rotation import haar, multiply
from jaxcomp.core import prng
from jaxcomp.core.coding.packing import pack, unpack
from jaxcomp.core.specs import Range, method
from jaxcomp.core.trees import vary_like
from jaxcomp.core.types import Array, Compressor, Spec, State


@functools.cache
def lloyd_max(bits: int) -> np.ndarray:
    """The positive half of the 2^bits levels with the least error on normal numbers.

    Each level is the mean of all numbers that are nearer to it than to any other level.
    Newton's method solves these equations. It starts with the best density of many
    levels, that of a normal distribution with three times the variance.

    Args:
      bits: bits that tell the levels apart.

    Example:
      >>> lloyd_max(2).round(4)
      array([0.4528, 1.5104])

    References:
      Lloyd, Least Squares Quantization in PCM, IEEE Transactions on Information Theory
      28, 1982. Max, Quantizing for Minimum Distortion, IRE Transactions on Information
      Theory 6, 1960.
    """
    count = 1 << (bits - 1)
    wide = statistics.NormalDist(0, math.sqrt(3))
    ranks = 0.5 + (np.arange(count) + 0.5) / (2 * count)
    levels = np.array([wide.inv_cdf(rank) for rank in ranks])
    for _ in range(8):
        edges = np.concatenate([[0], (levels[1:] + levels[:-1]) / 2])
        tails = [math.erfc(edge / math.sqrt(2)) / 2 for edge in edges]
        density = np.exp(-np.square(edges) / 2) / math.sqrt(2 * math.pi)
        mass = -np.diff(tails, append=0)
        means = -np.diff(density, append=0) / mass
        # Derivatives of the mean on one side of an edge by the level on the other side.
        upper = density[1:] * (edges[1:] - means[:-1]) / mass[:-1] / 2
        lower = density[1:] * (means[1:] - edges[1:]) / mass[1:] / 2
        slopes = np.diag(upper, 1) + np.diag(lower, -1)
        slopes += np.diag(np.append(upper, 0) + np.append(0, lower))
        levels += np.linalg.solve(np.eye(count) - slopes, means - levels)
    levels.flags.writeable = False  # all callers get this very array from the cache
    return levels


@functools.cache
def mean_square_error(bits: int, size: int) -> float:
    """E (t - Q(t))^2 for an element t of a random vector of length sqrt(size).

    It is integrated over the angle between the vector and the axis of the element. For
    many elements it tends to the error of a normal number.

    Args:
      bits: bits that tell the levels apart.
      size: number of elements of the vector.

    Example:
      >>> [round(mean_square_error(1, size), 4) for size in (1, 16, 256)]
      [0.0, 0.3433, 0.3621]
    """
    if size == 1:
        return 0.0  # t is 1 or -1, and so is the level
    count = 1 << 17
    end = math.asin(min(1, 10 / math.sqrt(size)))  # elements beyond 10 are too rare
    angles = (np.arange(count) + 0.5) * (end / count)
    weights = np.cos(angles) ** (size - 2)
    elements = math.sqrt(size) * np.sin(angles)
    levels = lloyd_max(bits)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, elements)
    errors = np.square(elements - levels[nearest])
    return float(np.average(errors, weights=weights))


MAX_BITS = 8
# Elements that are rotated together. A larger number takes more time, a smaller one
# sends more scales.
_WIDTH = 192
# Blocks that are processed together: intermediate results should fit into a cache.
_ROWS = 4096


class Rotated(NamedTuple):
    """Packed levels of rotated blocks, with their scales and the rotation's seed."""

    scales: Array  # [blocks] bfloat16
    packed: Array  # uint8
    seed: Array  # [2] uint32


@method("bits", "unbiased")
def eden(
    name: str, bits: Annotated[int, Range(1, MAX_BITS)] = 1, unbiased: bool = True
) -> Compressor:
    """Rotate blocks at random and round them to the best levels for normal numbers.

    C(b) = s R^T q with q = Q(sqrt(d) R b / |b|) for each block b of d <= 192 elements.
    R is a uniformly distributed rotation, and Q rounds to the nearest Lloyd-Max level.
    The method is unbiased with s = |b|^2 / <R b, q>: C(b) - b is then orthogonal to b
    and has no preferred direction. The biased method has the s that minimises
    |C(b) - b|, s = <R b, q> / |q|^2, and E|x - C(x)|^2 <= D |x|^2 with
    D = E(t - Q(t))^2, where t is an element of sqrt(d) R b / |b|. For every x, the
    error is that of a normal vector: for 1, 2, 3, 4 bits 0.57, 0.13, 0.035, 0.0094 of
    |x|^2 if unbiased, and 0.36, 0.12, 0.034, 0.0093 if biased. With one bit this is
    DRIVE. Results are clipped at the largest number of the dtype, so the method is
    unbiased only for elements below an eighth of that number.

    Args:
      bits: bits of each element, 1 to 8. The scale of a block takes 16 bits, the seed
        64 bits.
      unbiased: which of the two scales is used. With a memory use False.

    Example:
      >>> c = eden(bits=2)
      >>> x = jnp.arange(1000.0)
      >>> payload, _ = c.compress(x, (), jax.random.key(0))
      >>> payload.packed.shape, payload.scales.shape
      ((252,), (9,))

    References:
      Vargaftik et al., EDEN: Communication-Efficient and Robust Distributed Mean
      Estimation for Federated Learning, arXiv:2108.08842, 2022. Vargaftik et al.,
      DRIVE: One-bit Distributed Mean Estimation, arXiv:2105.08339, 2021.
    """
    way = _Eden(bits, unbiased)
    return compressor(
        name,
        way.compress,
        way.decompress,
        way.ideal_bits,
        way.contraction,
        unbiased=unbiased,
    )


class _Eden(NamedTuple):
    """The functions of the method; `eden` explains its arguments.

    Under vmap the workers run one after the other. This is as fast, and products of
    matrices have the same last bit as under pmap and shard_map.
    """

    bits: int
    unbiased: bool

    def compress(self, x: Array, state: State, key: Array) -> tuple[Rotated, State]:
        return jax.custom_batching.sequential_vmap(self.send)(x, key), state

    def decompress(self, payload: Rotated, spec: Spec) -> Array:
        one = functools.partial(self.receive, spec=spec)
        return jax.custom_batching.sequential_vmap(one)(payload)

    def ideal_bits(self, spec: Spec) -> float:
        layout = _layout(spec.size)
        return spec.size * self.bits + layout.parts * layout.rows * 16.0 + 64

    def contraction(self, spec: Spec) -> float | None:
        if self.unbiased:
            return None
        # The error of the best scale is at most that of s = |b| / sqrt(d). Rounding s
        # to bfloat16 adds at most 2^-16 |C(b)|^2.
        error = mean_square_error(self.bits, _layout(spec.size).width)
        return (1 - error) * (1 - 2.0**-16)

    def send(self, x: Array, key: Array) -> Rotated:
        layout = _layout(x.size)
        drawn = jax.random.bits(key, (4,), jnp.uint32)
        seed, private = drawn[:2], drawn[2:]
        matrix, flips = _rotation(seed, layout)
        flat = jnp.pad(x.reshape(-1), (0, max(0, layout.part - x.size)))

        def encode(part: _Part) -> tuple[Array, Array]:
            blocks = _blocks(flat, part.place, layout)
            down, up = _powers(jnp.max(jnp.abs(blocks), axis=1))
            blocks = _flip(blocks * down[:, None], part.flips)
            rotated = multiply(blocks, matrix.T)
            # NaN for a block with a NaN or an infinity, and so is its scale.
            squares = jnp.mean(jnp.square(rotated), axis=1)
            units = jnp.sqrt(jnp.where(squares == 0, 1.0, squares))
            symbols, values = _quantize(rotated, units, self.bits)
            inner = jnp.mean(values * rotated, axis=1) / units
            if self.unbiased:
                scales = units / inner
            else:
                scales = units * (inner / jnp.mean(jnp.square(values), axis=1))
            scales = jnp.where(squares == 0, 0.0, scales * up)
            return _narrow(scales, part.draws), pack(symbols.reshape(-1), self.bits)

        shape = (layout.parts, layout.rows)
        draws = prng.words(private, math.prod(shape)).reshape(shape) >> np.uint32(16)
        if not self.unbiased:
            draws = jnp.full(shape, 1 << 15, jnp.uint32)
        places = jax.lax.iota(jnp.uint32, layout.parts)
        scales, packed = jax.lax.map(encode, _Part(places, flips, draws))
        return Rotated(scales.reshape(-1), packed.reshape(-1), seed)

    def receive(self, payload: Rotated, spec: Spec) -> Array:
        layout = _layout(spec.size)
        matrix, flips = _rotation(payload.seed, layout)
        packed = payload.packed.reshape(layout.parts, -1)
        scales = payload.scales.reshape(layout.parts, -1).astype(jnp.float32)
        # The level of each symbol: first the positive ones, then the negative ones.
        both = np.concatenate([lloyd_max(self.bits), -lloyd_max(self.bits)])
        levels = jnp.asarray(both, jnp.float32)
        largest = float(min(jnp.finfo(d).max for d in (spec.dtype, jnp.float32)))

        def decode(i: Array, flat: Array) -> Array:
            # From the last part to the first: the last part may begin with elements
            # of the part before it, which then overwrites them.
            place = layout.parts - 1 - i
            symbols = unpack(packed[place], self.bits, layout.part)
            values = levels.at[symbols].get(mode="clip")
            blocks = multiply(values.reshape(layout.rows, layout.width), matrix)
            blocks = _flip(blocks, flips[place])
            blocks = _clip(blocks * scales[place][:, None], largest)
            part = blocks.reshape(-1).astype(spec.dtype)
            start = _start(place, flat.size, layout)
            return jax.lax.dynamic_update_slice(flat, part, (start,))

        zeros = jnp.zeros(max(spec.size, layout.part), spec.dtype)
        start = vary_like(zeros, payload)
        return jax.lax.fori_loop(0, layout.parts, decode, start)[: spec.size]


class _Layout(NamedTuple):
    """How a vector is divided into parts, and a part into rows, which are blocks."""

    parts: int
    rows: int
    width: int

    @property
    def part(self) -> int:
        """Number of elements of a part."""
        return self.rows * self.width


class _Part(NamedTuple):
    """The arguments that differ between parts."""

    place: Array  # [] uint32: which part it is
    flips: Array  # [2] uint32: the seed of its sign changes
    draws: Array  # [rows] uint32 below 2^16: random bits for rounding the scales


def _layout(size: int) -> _Layout:
    """The layout of a vector: all blocks have the same width, at most `_WIDTH`.

    Drawing a rotation takes width^3 steps, so a short vector has a smaller width.
    """
    blocks = -(-size // min(_WIDTH, 4 * math.isqrt(size)))
    parts = -(-blocks // _ROWS)
    rows = -(-blocks // parts)
    return _Layout(parts, rows, -(-size // (parts * rows)))


def _rotation(seed: Array, layout: _Layout) -> tuple[Array, Array]:
    """The matrix that all blocks share, and for each part the seed of its sign changes.

    Before the rotation, random elements change their sign. Each block so has a rotation
    of its own, and the errors of equal blocks differ and average out.
    """
    seeds = prng.words(seed, 2 * (1 + layout.parts)).reshape(-1, 2)
    return haar(seeds[0], layout.width), seeds[1:]


def _start(place: Array, size: int, layout: _Layout) -> Array:
    """The place of the first element of a part; the last part ends with the vector."""
    return jnp.minimum(place * np.uint32(layout.part), np.uint32(size - layout.part))


def _blocks(flat: Array, place: Array, layout: _Layout) -> Array:
    """The part at `place`, as [rows, width] float32.

    The last part ends with the vector, and has zeros where it overlaps with the part
    before it. Padding the vector instead would copy it.
    """
    start = _start(place, flat.size, layout)
    part = jax.lax.dynamic_slice(flat, (start,), (layout.part,)).astype(jnp.float32)
    overlap = place * np.uint32(layout.part) - start
    part = jnp.where(jax.lax.iota(jnp.uint32, layout.part) < overlap, 0.0, part)
    return part.reshape(layout.rows, layout.width)


def _powers(peaks: Array) -> tuple[Array, Array]:
    """Powers of two that scale each block so that squares stay in range, and back."""
    is_huge, is_tiny = peaks > 2.0**40, peaks < 2.0**-40
    down = jnp.where(is_huge, 2.0**-87, jnp.where(is_tiny, 2.0**87, 1.0))
    # Not 1 / down: XLA would divide by `down` early, and intermediate results overflow.
    up = jnp.where(is_huge, 2.0**87, jnp.where(is_tiny, 2.0**-87, 1.0))
    return down, up


def _flip(blocks: Array, seed: Array) -> Array:
    """The blocks with the sign of random elements changed; it is its own inverse."""
    words = prng.words(seed, blocks.size).reshape(blocks.shape)
    return jnp.where(words >> np.uint32(31) == 1, -blocks, blocks)


def _quantize(rotated: Array, units: Array, bits: int) -> tuple[Array, Array]:
    """The symbols of the nearest levels, and these levels, in units of each row."""
    magnitudes = jnp.abs(rotated) / units[:, None]
    levels = lloyd_max(bits)
    symbols = jnp.where(rotated < 0, np.uint8(levels.size), np.uint8(0))
    values = jnp.full(rotated.shape, levels[0], jnp.float32)
    for i, edge in enumerate((levels[1:] + levels[:-1]) / 2):
        is_above = magnitudes >= np.float32(edge)
        symbols += is_above.astype(jnp.uint8)
        values = jnp.where(is_above, np.float32(levels[i + 1]), values)
    return symbols, jnp.where(rotated < 0, -values, values)


def _narrow(scales: Array, draws: Array) -> Array:
    """Scales as bfloat16, rounded up if adding `draws` to the lost bits gives a carry.

    Uniform draws of 16 bits keep the mean, and 2^15 rounds to the nearest. The rounding
    is arithmetic on bits, because a compiler may leave out a conversion to bfloat16 and
    back, and a worker would then decode its own payload differently than the others do.
    """
    bits = jax.lax.bitcast_convert_type(scales, jnp.uint32)
    bits = (bits + draws) & np.uint32(0xFFFF0000)
    narrowed = jax.lax.bitcast_convert_type(bits, jnp.float32)
    narrowed = jnp.where(jnp.isfinite(scales), narrowed, scales)
    return _clip(narrowed, float(jnp.finfo(jnp.bfloat16).max)).astype(jnp.bfloat16)


def _clip(x: Array, largest: float) -> Array:
    """x clipped to [-largest, largest]. NaN stays, unlike in XLA's minimum."""
    return jnp.where(x > largest, largest, jnp.where(x < -largest, -largest, x))

"""Quantisers element by element, in float64."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Levels(NamedTuple):
    """What a stochastic quantiser may do to each element."""

    lower: np.ndarray  # the neighbour nearer to zero
    upper: np.ndarray  # the other
    chance: np.ndarray  # of the upper one


def nearest(levels: Levels) -> np.ndarray:
    """The neighbour that is nearer; the lower one of two as near."""
    return np.where(levels.chance > 0.5, levels.upper, levels.lower)


def sign(x: np.ndarray, scale: str = "l1") -> np.ndarray:
    """The mean magnitude, or the root mean square, with each sign, + for zero."""
    power = {"l1": 1, "l2": 2}[scale]
    mean = np.mean(np.abs(x.astype(np.float64)) ** power) ** (1 / power)
    return np.where(x < 0, -1.0, 1.0) * mean


def qsgd(x: np.ndarray, levels: int, bucket: int | None, norm: str = "l2") -> Levels:
    """Multiples of the bucket's norm / levels."""
    order = {"l2": 2, "max": np.inf}[norm]
    units = np.empty(x.size)
    for part in _parts(x.size, bucket):
        units[part] = np.linalg.norm(x[part].astype(np.float64), order) / levels
    return _between_multiples(x, units)


def terngrad(x: np.ndarray, clip: float | None, bucket: int | None) -> Levels:
    """Zero or the largest magnitude, of what is clipped first."""
    x = x.astype(np.float64)
    units = np.empty(x.size)
    for part in _parts(x.size, bucket):
        if clip is not None:
            most = clip * np.sqrt(np.mean(x[part] ** 2))
            x[part] = np.clip(x[part], -most, most)
        units[part] = np.abs(x[part]).max()
    return _between_multiples(x, units)


def natural(x: np.ndarray) -> Levels:
    """Powers of two."""
    size = np.abs(x.astype(np.float64))
    below = 2.0 ** np.floor(np.log2(np.where(size == 0, 1, size)))
    direction = np.sign(x)
    return Levels(below * direction, 2 * below * direction, size / below - 1)


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The nearest of all numbers of the type; of two, the one with even bits."""
    bits = {1: np.uint8, 2: np.uint16}[np.dtype(dtype).itemsize]
    numbers = np.arange(1 << (8 * np.dtype(bits).itemsize - 1)).astype(bits)
    numbers = numbers.view(dtype)  # ascending, from zero
    with np.errstate(invalid="ignore"):  # of NaNs
        numbers = numbers[np.isfinite(numbers)].astype(np.float64)
    size = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(numbers, size), 1, numbers.size - 1)
    down, up = size - numbers[above - 1], numbers[above] - size
    chosen = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    return np.where(np.isfinite(x), np.sign(x) * numbers[chosen], x)


def block_scaled(x: np.ndarray, bits: int, block: int, reach: float) -> Levels:
    """Neighbours on the grid times the least power of two that fits the block."""
    grid = {8: np.arange(128.0), 4: np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])}[bits]
    lower, upper, chance = np.empty((3, x.size))
    for part in _parts(x.size, block):
        size = np.abs(x[part].astype(np.float64))
        scale = 2.0**-140
        while size.max() > reach * scale:
            scale *= 2
        place = np.searchsorted(grid * scale, size, side="right") - 1
        place = np.minimum(place, grid.size - 2)
        below, above = grid[place] * scale, grid[place + 1] * scale
        direction = np.sign(x[part])
        lower[part], upper[part] = below * direction, above * direction
        chance[part] = np.minimum((size - below) / (above - below), 1)
    return Levels(lower, upper, chance)


def _parts(size: int, bucket: int | None) -> Iterator[slice]:
    width = bucket or size
    for start in range(0, size, width):
        yield slice(start, start + width)


def _between_multiples(x: np.ndarray, units: np.ndarray) -> Levels:
    units = np.where(units == 0, 1.0, units)
    scaled = np.abs(x.astype(np.float64)) / units
    # The largest is a multiple itself, whatever the division says.
    whole = np.abs(scaled - np.round(scaled)) < 1e-9
    lower = np.where(whole, np.round(scaled), np.floor(scaled))
    direction = np.where(x < 0, -units, units)
    chance = np.where(whole, 0.0, scaled - lower)
    return Levels(lower * direction, (lower + 1) * direction, chance)

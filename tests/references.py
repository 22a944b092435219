"""Slow and obvious versions in NumPy and plain Python, to compare with."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


def pack(symbols: Sequence[int], bits: int) -> list[int]:
    """The words of `payloads.pack`, by integers of any length.

    32 symbols, `columns` apart, are one integer of 32 * bits bits; its 32-bit digits
    are the words of that column.
    """
    columns = -(-len(symbols) // 32)
    padded = [*symbols, *[0] * (columns * 32 - len(symbols))]
    words = [0] * (bits * columns)
    for column in range(columns):
        integer = sum(
            s << (row * bits) for row, s in enumerate(padded[column::columns])
        )
        for digit in range(bits):
            words[digit * columns + column] = integer >> (32 * digit) & 0xFFFFFFFF
    return words


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    """Sort by magnitude, keep the last k; of equals the first ones."""
    order = np.argsort(-np.abs(x), axis=None, kind="stable")
    result = np.zeros(x.size, x.dtype)
    result[order[:k]] = x.reshape(-1)[order[:k]]
    return result.reshape(x.shape)


def sign(x: np.ndarray) -> np.ndarray:
    """The mean magnitude with the sign of each element, + for zero."""
    return np.where(x < 0, -1.0, 1.0) * np.abs(x).mean()


class Levels(NamedTuple):
    """What QSGD may do to each element."""

    lower: np.ndarray  # the neighbour nearer to zero
    upper: np.ndarray  # the other
    chance: np.ndarray  # of the upper one


def qsgd(x: np.ndarray, levels: int, bucket: int | None) -> Levels:
    """Both neighbours of each element and the chance of the upper one, in float64."""
    x = x.reshape(-1).astype(np.float64)
    units = np.empty(x.size)
    width = bucket or x.size
    for start in range(0, x.size, width):
        part = slice(start, start + width)
        units[part] = np.linalg.norm(x[part]) / levels
    units = np.where(units == 0, 1.0, units)
    scaled = np.abs(x) / units
    lower = np.floor(scaled)
    direction = np.where(x < 0, -units, units)
    return Levels(lower * direction, (lower + 1) * direction, scaled - lower)

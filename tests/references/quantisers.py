"""Quantisers element by element, in float64."""

from typing import NamedTuple

import numpy as np

__all__ = ["Levels", "qsgd", "sign"]


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

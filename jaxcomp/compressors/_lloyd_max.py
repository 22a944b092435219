"""Lloyd-Max levels: the levels that round normal numbers with the least error.

They also suit every vector that was rotated at random: in many dimensions the
distribution of its elements is almost normal, whatever the vector was.
"""

import functools
import math
import statistics

import numpy as np

__all__ = ["lloyd_max", "mean_square_error"]


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

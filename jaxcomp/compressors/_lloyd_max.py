"""Lloyd-Max levels: the ones that round normal numbers with the least error.

Rounding the elements of a vector that was rotated at random needs no other levels,
whatever the vector was: in many dimensions its elements are as good as normal.
"""

import functools
import math
import statistics

import numpy as np

__all__ = ["lloyd_max", "mean_square_error"]


@functools.cache
def lloyd_max(bits: int) -> np.ndarray:
    """The positive ones of the 2^bits levels with the least error on normal numbers.

    Each level is the mean of what is nearer to it than to any other. Newton's method on
    these equations; the start is the best density of many levels, that of a normal
    distribution three times as wide in variance.

    Args:
      bits: of a symbol that says which level.

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
        # What a level at either side of an edge does to the mean on the other side.
        upper = density[1:] * (edges[1:] - means[:-1]) / mass[:-1] / 2
        lower = density[1:] * (means[1:] - edges[1:]) / mass[1:] / 2
        slopes = np.diag(upper, 1) + np.diag(lower, -1)
        slopes += np.diag(np.append(upper, 0) + np.append(0, lower))
        levels += np.linalg.solve(np.eye(count) - slopes, means - levels)
    levels.flags.writeable = False  # the cache hands out this very array
    return levels


@functools.cache
def mean_square_error(bits: int, size: int) -> float:
    """E (t - Q(t))^2, t an element of a random vector of `size` and length sqrt(size).

    By integration over the angle to the element's axis. Almost that of a normal number,
    which is the limit for many elements.

    Args:
      bits: of a symbol.
      size: elements of the vector.

    Example:
        >>> [round(mean_square_error(1, size), 4) for size in (1, 16, 256)]
        [0.0, 0.3433, 0.3621]
    """
    if size == 1:
        return 0.0  # it is known up to its sign
    count = 1 << 17
    end = math.asin(min(1, 10 / math.sqrt(size)))  # elements beyond 10 are too rare
    angles = (np.arange(count) + 0.5) * (end / count)
    weights = np.cos(angles) ** (size - 2)
    elements = math.sqrt(size) * np.sin(angles)
    levels = lloyd_max(bits)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, elements)
    errors = np.square(elements - levels[nearest])
    return float(np.average(errors, weights=weights))

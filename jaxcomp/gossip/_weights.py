"""Mixing matrices: their weights, the conditions on them, and their spectral gap."""

from collections.abc import Iterable

import numpy as np

from jaxcomp.specs import SpecError, suggest

__all__ = [
    "check_mixing",
    "fill_diagonal",
    "is_connected",
    "mixing_matrix",
    "spectral_gap",
]

TOLERANCE = 1e-12  # of sums that are to be 1
_RULES = ("metropolis", "uniform", "max_degree")


def mixing_matrix(
    edges: Iterable[tuple[int, int]], size: int, weights: str = "metropolis"
) -> np.ndarray:
    """W with 1 / (1 + max(d_i, d_j)) for each edge (i, j), and rows that sum to 1.

    d_i is the number of neighbours of worker i. With 'uniform' each edge has the weight
    1 / (1 + max d). With 'max_degree', the rule of ChocoSGD, it is 1 / max(d_i, d_j),
    d_i counts a loop of i too, and a worker keeps less of its own value. Columns sum to
    1 too if every edge goes both ways, or if all workers have equally many neighbours.

    Args:
      edges: (source, destination). Repeated edges count once, loops not at all, but
        for 'max_degree'.
      size: number of workers.
      weights: 'metropolis', 'uniform' or 'max_degree'.

    Example:
      >>> mixing_matrix([(0, 1), (1, 0), (1, 2), (2, 1)], 3).round(3).tolist()
      [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]

    References:
      Xiao, Boyd, Kim, Distributed Average Consensus with Least-Mean-Square Deviation,
      Journal of Parallel and Distributed Computing 67, 2007.
    """
    if weights not in _RULES:
        raise SpecError(f"unknown weights {weights!r}. {suggest(weights, _RULES)}")
    joined = np.zeros((size, size), bool)
    for source, destination in edges:
        joined[destination, source] = True
    hears = joined & ~np.eye(size, dtype=bool)
    counted = joined if weights == "max_degree" else hears
    degree = np.maximum(counted.sum(axis=0), counted.sum(axis=1))
    if weights == "uniform":
        degree = np.full(size, degree.max())
    own = 0.0 if weights == "max_degree" else 1.0
    return fill_diagonal(hears / np.maximum(own + np.maximum.outer(degree, degree), 1))


def fill_diagonal(matrix: np.ndarray) -> np.ndarray:
    """The same matrix with a diagonal that makes each row sum to 1.

    Args:
      matrix: [n, n] with a diagonal of zeros.

    Example:
      >>> fill_diagonal(np.array([[0.0, 0.25], [0.25, 0.0]])).tolist()
      [[0.75, 0.25], [0.25, 0.75]]
    """
    return matrix + np.diag(1.0 - matrix.sum(axis=1))


def is_connected(matrices: Iterable[np.ndarray]) -> bool:
    """Whether messages of one worker can reach all others, over all rounds together.

    Args:
      matrices: doubly stochastic matrices, one a round.

    Example:
      >>> is_connected([np.eye(2)])
      False
    """
    return bool(_reached(matrices).all())


def check_mixing(matrices: list[np.ndarray]) -> None:
    """Refuse weights with which the workers would not agree on their mean.

    Args:
      matrices: [n, n] each, one a round.

    Example:
      >>> check_mixing([np.array([[0.5, 0.5], [0.25, 0.75]])])  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ...
      jaxcomp.specs.grammar.SpecError: the weights worker 0 gives away (column 0) ...
    """
    for matrix in matrices:
        _check_stochastic(matrix)
    reached = _reached(matrices)
    if not reached.all():
        lost = int(np.argmin(reached))
        raise SpecError(
            f"the graph is not connected: worker {lost} cannot be reached from "
            f"worker 0 ({reached.sum()} of {len(reached)} workers can)"
        )
    if spectral_gap(matrices) < TOLERANCE:
        raise SpecError(
            "spectral gap 0: some differences between workers are passed on and never "
            "shrink. Leave each worker a weight of its own"
        )


def spectral_gap(matrices: list[np.ndarray]) -> float:
    """1 - |W_r ... W_1 - 11^T/n|_2 ^ (1/r) for the r rounds of a cycle; 1 if n = 1.

    On average over a cycle, each round multiplies the distance to the mean by at most
    1 - gap. The norm is the largest singular value. For one symmetric W it is the
    largest |eigenvalue| of W - 11^T/n, so this is the gap of the literature.

    Args:
      matrices: doubly stochastic [n, n] each, in the order of the rounds.

    Example:
      >>> spectral_gap([np.full((3, 3), 1 / 3)])
      1.0
    """
    cycle = np.eye(len(matrices[0]))
    for matrix in matrices:
        cycle = matrix @ cycle
    norm = float(np.linalg.norm(cycle - 1 / len(cycle), 2))
    # A norm of zero is not exactly zero after rounding, and the root would enlarge it.
    return 1.0 - (norm ** (1 / len(matrices)) if norm > 1e-14 else 0.0)


def _check_stochastic(matrix: np.ndarray) -> None:
    for (i, j), weight in np.ndenumerate(matrix):
        if not np.isfinite(weight) or weight < (-TOLERANCE if i == j else 0):
            which = "keeps of its own value" if i == j else f"gives to worker {j}"
            raise SpecError(f"the weight that worker {i} {which} is {weight:.6g}")
    for axis, what in ((1, "gives to what it hears (row"), (0, "gives away (column")):
        sums = matrix.sum(axis=axis)
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > TOLERANCE:
            raise SpecError(
                f"the weights worker {worst} {what} {worst}) sum to "
                f"{sums[worst]:.6g}, not to 1"
            )


def _reached(matrices: Iterable[np.ndarray]) -> np.ndarray:
    """Which workers have a path to worker 0, as an array of bools.

    Directions of edges do not matter: rows and columns sum to 1, so the weights into a
    set of workers add up to the weights out of it.
    """
    joined = np.logical_or.reduce([(w != 0) | (w != 0).T for w in matrices])
    reached = np.zeros(len(joined), bool)
    fresh = np.arange(len(joined)) == 0
    while fresh.any():
        reached |= fresh
        fresh = joined[fresh].any(axis=0) & ~reached
    return reached

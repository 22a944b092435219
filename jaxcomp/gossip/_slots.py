"""A round of gossip as few permutations, because a collective sends one."""

from typing import NamedTuple

import numpy as np

from jaxcomp.colouring import coloured

__all__ = ["Slot", "decompose"]


class Slot(NamedTuple):
    """One permutation of a round: a worker sends and receives at most one message."""

    pairs: tuple[tuple[int, int], ...]  # (source, destination), never i to i
    weights: np.ndarray  # float64 [n]: W[i, source of i], 0 where nothing arrives


def decompose(matrix: np.ndarray) -> tuple[Slot, ...]:
    """Divide W, without its diagonal, into as few partial permutations as possible.

    Their number is the largest number of messages that a worker sends or receives.
    Edges are coloured in the order of (destination - source) mod n, so that each slot
    of a ring or of a complete graph is one whole shift.

    Args:
      matrix: [n, n]; W[i, j] is the weight of worker j's value at worker i.

    Example:
      >>> ring = np.array([[0.4, 0.2, 0.4], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
      >>> for slot in decompose(ring):
      ...     print(slot.pairs, slot.weights.tolist())
      ((0, 1), (1, 2), (2, 0)) [0.4, 0.4, 0.4]
      ((0, 2), (1, 0), (2, 1)) [0.2, 0.2, 0.2]
    """
    size = len(matrix)
    linked = (matrix != 0) & ~np.eye(size, dtype=bool)
    edges = [(int(j), int(i)) for i, j in np.argwhere(linked)]
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % size, edge[0]))
    return tuple(
        _slot(matrix, destinations) for destinations in coloured(edges, size).T
    )


def _slot(matrix: np.ndarray, destinations: np.ndarray) -> Slot:
    pairs = tuple((j, int(i)) for j, i in enumerate(destinations) if i >= 0)
    weights = np.zeros(len(matrix))
    for source, destination in pairs:
        weights[destination] = matrix[destination, source]
    return Slot(pairs, weights)

"""A round of gossip as few permutations, because a collective sends one."""

from typing import NamedTuple

import numpy as np

__all__ = ["Slot", "decompose"]


class Slot(NamedTuple):
    """One permutation of a round: a worker sends and receives at most one message."""

    pairs: tuple[tuple[int, int], ...]  # (source, destination), never i to i
    weights: np.ndarray  # float64 [n]: W[i, source of i], 0 where nothing arrives


def decompose(matrix: np.ndarray) -> tuple[Slot, ...]:
    """Divide W, without its diagonal, into as few partial permutations as possible.

    Their number is the largest number of messages that a worker sends or receives.
    This follows from Koenig's theorem: the edges of a bipartite graph, here of senders
    and receivers, can be coloured with as many colours as its largest degree. Edges are
    coloured in the order of (destination - source) mod n, so that each slot of a ring
    or of a complete graph is one whole shift.

    Args:
      matrix: [n, n]; W[i, j] is the weight of worker j's value at worker i.

    Example:
      >>> ring = np.array([[0.4, 0.2, 0.4], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
      >>> for slot in decompose(ring):
      ...     print(slot.pairs, slot.weights.tolist())
      ((0, 1), (1, 2), (2, 0)) [0.4, 0.4, 0.4]
      ((0, 2), (1, 0), (2, 1)) [0.2, 0.2, 0.2]

    References:
      König, Über Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre,
      Mathematische Annalen 77, 1916.
    """
    size = len(matrix)
    linked = (matrix != 0) & ~np.eye(size, dtype=bool)
    colours = int(max(linked.sum(axis=0).max(), linked.sum(axis=1).max()))
    edges = [(int(j), int(i)) for i, j in np.argwhere(linked)]
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % size, edge[0]))
    # To whom and from whom a worker's message of each colour is; -1 is nobody.
    sends = np.full((size, colours), -1)
    hears = np.full((size, colours), -1)
    for source, destination in edges:
        colour = _free_colour(sends, hears, source, destination)
        sends[source, colour] = destination
        hears[destination, colour] = source
    return tuple(_slot(matrix, sends[:, colour]) for colour in range(colours))


def _free_colour(
    sends: np.ndarray, hears: np.ndarray, source: int, destination: int
) -> int:
    """A colour that neither end of an edge has yet.

    If there is none, two colours are swapped along a chain of edges to make one.
    """
    unsent, unheard = sends[source] < 0, hears[destination] < 0
    common = np.flatnonzero(unsent & unheard)
    if len(common):
        return int(common[0])
    wanted, other = int(np.argmax(unsent)), int(np.argmax(unheard))
    # The chain of colours wanted, other, wanted, ... that begins at the destination. It
    # reaches senders by edges of `wanted` only. The source has none, so the chain never
    # reaches it.
    chain = []
    hearer = destination
    while (sender := int(hears[hearer, wanted])) >= 0:
        chain.append((sender, hearer, wanted))
        if (hearer := int(sends[sender, other])) < 0:
            break
        chain.append((sender, hearer, other))
    for sender, hearer, colour in chain:
        sends[sender, colour] = hears[hearer, colour] = -1
    for sender, hearer, colour in chain:
        swapped = other if colour == wanted else wanted
        sends[sender, swapped], hears[hearer, swapped] = hearer, sender
    return wanted


def _slot(matrix: np.ndarray, destinations: np.ndarray) -> Slot:
    pairs = tuple((j, int(i)) for j, i in enumerate(destinations) if i >= 0)
    weights = np.zeros(len(matrix))
    for source, destination in pairs:
        weights[destination] = matrix[destination, source]
    return Slot(pairs, weights)

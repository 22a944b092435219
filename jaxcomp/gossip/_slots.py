"""A round of gossip as few permutations, which is what collectives can send."""

from typing import NamedTuple

import numpy as np

__all__ = ["Slot", "decompose"]


class Slot(NamedTuple):
    """One permutation of a round: each worker sends and hears at most once."""

    pairs: tuple[tuple[int, int], ...]  # (source, destination), never i to i
    weights: np.ndarray  # float64 [n]: W[i, source of i], 0 where nothing arrives


def decompose(matrix: np.ndarray) -> tuple[Slot, ...]:
    """Cut W, without its diagonal, into as few partial permutations as possible.

    That is the largest number of messages that a worker sends or hears: edges of a
    bipartite graph (senders, hearers) have a colouring with as many colours as its
    largest degree. Edges are coloured shift by shift, (destination - source) mod n, so
    that a ring or a complete graph becomes one whole shift a slot.

    Args:
      matrix: [n, n]; W[i, j] is what i makes of j's value.

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
    # Who a worker sends to, and whom it hears, in each colour; -1 is nobody.
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
    """A colour that neither end has yet, if need be after two colours are swapped."""
    unsent, unheard = sends[source] < 0, hears[destination] < 0
    common = np.flatnonzero(unsent & unheard)
    if len(common):
        return int(common[0])
    wanted, other = int(np.argmax(unsent)), int(np.argmax(unheard))
    # The chain of wanted, other, wanted, ... from the destination. It comes to senders
    # by `wanted` only, which the source has not, so it never ends there.
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

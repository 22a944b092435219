"""Messages in as few turns as possible, where each sends and receives one in a turn."""

from collections.abc import Sequence

import numpy as np


def coloured(edges: Sequence[tuple[int, int]], size: int) -> np.ndarray:
    """To whom each of `size` nodes sends in each turn, [size, turns]; -1 is nobody.

    The number of turns is the largest number of messages that a node sends or receives.
    This follows from Koenig's theorem: the edges of a bipartite graph, here of senders
    and receivers, can be coloured with as many colours as its largest degree.

    Args:
      edges: (source, destination) each; the same one may be there several times.
      size: the number of nodes.

    Example:
      >>> coloured([(0, 1), (0, 1), (1, 0)], 2).tolist()
      [[1, 1], [0, -1]]

    References:
      König, Über Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre,
      Mathematische Annalen 77, 1916.
    """
    ends = np.array(edges, int).reshape(-1, 2).T
    colours = max(int(np.bincount(end, minlength=1).max()) for end in ends)
    # To whom and from whom a node's message of each colour is.
    sends = np.full((size, colours), -1)
    hears = np.full((size, colours), -1)
    for source, destination in edges:
        colour = _free_colour(sends, hears, source, destination)
        sends[source, colour] = destination
        hears[destination, colour] = source
    return sends


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

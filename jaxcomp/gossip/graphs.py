"""The named graphs. Each takes the number of workers and gives its matrices.

That worker i hears worker j says that i receives the messages of j.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from jaxcomp.gossip._weights import mixing_matrix
from jaxcomp.specs import SpecError, method

__all__ = ["NAMED", "Graph", "Weights", "both_ways", "torus_sides"]

Edges = set[tuple[int, int]]
Weights = Literal["metropolis", "uniform", "max_degree"]


class Graph(NamedTuple):
    """What a factory returns: a mixing matrix for each round, not checked yet."""

    name: str
    matrices: tuple[np.ndarray, ...]


def complete(workers: int) -> Graph:
    """Everybody hears everybody: the exact mean in one round."""
    return _shifted("complete", workers, range(1, workers))


def ring(workers: int) -> Graph:
    """Each worker hears the one before it and the one after it."""
    return _shifted("ring", workers, (1, -1))


def ring_antipode(workers: int) -> Graph:
    """A ring where each worker hears the opposite one too.

    Args:
      workers: any number. In a ring of odd length a worker has two opposite ones.
    """
    half = workers // 2
    return _shifted("ring_antipode", workers, (1, -1, half, -half))


@method(given=1)
def torus(name: str, workers: int, rows: int | None = None) -> Graph:
    """A grid closed in both directions, as square as possible.

    A side of 2 has one edge where a longer one has two, a side of 1 has none.

    Args:
      workers: not a prime above 3, unless `rows` is given.
      rows: a divisor of the workers, for other sides.
    """
    height, width = torus_sides(workers, rows)
    edges = set()
    for y, x in itertools.product(range(height), range(width)):
        below, beside = (y + 1) % height * width + x, y * width + (x + 1) % width
        edges |= {(y * width + x, below), (y * width + x, beside)}
    return Graph(name, (mixing_matrix(both_ways(edges), workers),))


def torus_sides(workers: int, rows: int | None = None) -> tuple[int, int]:
    """Rows and columns of a torus.

    Example:
      >>> torus_sides(12)
      (3, 4)
    """
    if rows is not None:
        if not isinstance(rows, int) or rows < 1 or workers % rows:
            raise SpecError(f"rows divide the {workers} workers, {rows!r} does not")
        return rows, workers // rows
    if workers > 3 and _is_prime(workers):
        raise SpecError(
            f"{workers} is prime, its torus would be a ring: give "
            f"{_nearest(workers, lambda n: not _is_prime(n))} workers, or rows=1"
        )
    height = next(y for y in range(math.isqrt(workers), 0, -1) if workers % y == 0)
    return height, workers // height


@method(given=1)
def expander(name: str, workers: int, weights: Weights = "metropolis") -> Graph:
    """A ring where i hears its inverse modulo a prime too.

    The spectral gap does not vanish as the ring grows. Workers differ in their number
    of neighbours, because 0, 1 and -1 have no other inverse, and an inverse may be a
    neighbour on the ring; Metropolis weights allow for that.

    Args:
      workers: a prime, or 1.
      weights: 'metropolis', 'uniform' or 'max_degree'.

    References:
      Hoory, Linial, Wigderson, Expander Graphs and their Applications, Bulletin of the
      American Mathematical Society 43, 2006.
    """
    if workers > 1 and not _is_prime(workers):
        sizes = _nearest(workers, _is_prime)
        raise SpecError(f"inverses need a prime: {sizes} workers, not {workers}")
    edges = {(i, (i + 1) % workers) for i in range(workers)}
    # 0 has no inverse, and a loop instead; 1 and -1 are their own.
    edges |= {(0, 0), *((i, pow(i, -1, workers)) for i in range(1, workers))}
    return _weighted(name, edges, workers, weights)


@method(given=1)
def margulis(name: str, workers: int, weights: Weights = "metropolis") -> Graph:
    """A square of m x m workers, each with at most 8 neighbours.

    (x, y) is joined with (x + 2y, y), (x + 2y + 1, y), (x, y + 2x) and (x, y + 2x + 1),
    modulo m. The spectral gap does not vanish as m grows.

    Args:
      workers: a perfect square.
      weights: 'metropolis', 'uniform' or 'max_degree'; some workers have fewer
        neighbours than 8.

    References:
      Gabber, Galil, Explicit Constructions of Linear-Sized Superconcentrators, Journal
      of Computer and System Sciences 22, 1981.
    """
    side = math.isqrt(workers)
    if side**2 != workers:
        sizes = _nearest(workers, lambda n: math.isqrt(n) ** 2 == n)
        raise SpecError(f"needs a perfect square: {sizes} workers, not {workers}")
    edges = set()
    for x, y, odd in itertools.product(range(side), range(side), (0, 1)):
        right, up = (x + 2 * y + odd) % side, (y + 2 * x + odd) % side
        edges |= {(x * side + y, right * side + y), (x * side + y, x * side + up)}
    return _weighted(name, edges, workers, weights)


# Which of the events 1 to 14 each of the 18 women attended.
_ATTENDED = (
    "1 2 3 4 5 6 8 9 | 1 2 3 5 6 7 8 | 2 3 4 5 6 7 8 9 | 1 3 4 5 6 7 8 | 3 4 5 7 | "
    "3 5 6 8 | 5 6 7 8 | 6 8 9 | 5 7 8 9 | 7 8 9 12 | 8 9 10 12 | 8 9 10 12 13 14 | "
    "7 8 9 10 12 13 14 | 6 7 9 10 11 12 13 14 | 7 8 10 11 12 | 8 9 | 9 11 | 9 11"
)


@method(given=1)
def social(name: str, workers: int, weights: Weights = "metropolis") -> Graph:
    """18 women (workers 0 to 17) and 14 events they attended (18 to 31).

    Args:
      workers: 32.
      weights: 'metropolis', 'uniform' or 'max_degree'.

    References:
      Davis, Gardner, Gardner, Deep South, University of Chicago Press, 1941.
    """
    if workers != 32:
        raise SpecError(f"has 18 women and 14 events: 32 workers, not {workers}")
    women = enumerate(_ATTENDED.split(" | "))
    edges = {(i, 17 + int(event)) for i, events in women for event in events.split()}
    return _weighted(name, edges, workers, weights)


def star(workers: int) -> Graph:
    """Worker 0 hears everybody, everybody hears worker 0."""
    edges = both_ways((0, i) for i in range(1, workers))
    return Graph("star", (mixing_matrix(edges, workers),))


@method(given=1)
def hypercube(name: str, workers: int, one_peer: bool = False) -> Graph:
    """Workers whose numbers differ in one bit hear each other.

    Args:
      workers: a power of two.
      one_peer: one bit a round, in turn; one cycle is the exact mean.
    """
    if workers & (workers - 1):
        sizes = _nearest(workers, lambda n: n & (n - 1) == 0)
        raise SpecError(f"needs a power of two: {sizes} workers, not {workers}")
    powers = [2**k for k in range((workers - 1).bit_length())]
    rounds = [{(i, i ^ bit) for i in range(workers)} for bit in powers]
    return _in_turn(name, rounds, workers, one_peer)


@method(given=1)
def exponential(name: str, workers: int, one_peer: bool = False) -> Graph:
    """i hears i - 1, i - 2, i - 4, ...; edges have a direction.

    Args:
      workers: any number.
      one_peer: one distance a round, in turn; of 2^k workers a cycle is the exact mean.

    References:
      Ying, Yuan, Chen, Hu, Pan, Yin, Exponential Graph is Provably Efficient for
      Decentralized Deep Training, arXiv:2110.13363, 2021.
    """
    powers = [2**k for k in range((workers - 1).bit_length())]
    rounds = [_circulant(workers, [shift]) for shift in powers]
    return _in_turn(name, rounds, workers, one_peer)


NAMED: dict[str, Callable[..., Graph]] = {
    "complete": complete,
    "exponential": exponential,
    "expander": expander,
    "hypercube": hypercube,
    "margulis": margulis,
    "ring": ring,
    "ring_antipode": ring_antipode,
    "social": social,
    "star": star,
    "torus": torus,
}


def both_ways(edges: Iterable[tuple[int, int]]) -> Edges:
    """Each edge in both directions, once.

    Example:
      >>> sorted(both_ways([(0, 1), (1, 0), (1, 2)]))
      [(0, 1), (1, 0), (1, 2), (2, 1)]
    """
    return {pair for i, j in edges for pair in ((i, j), (j, i))}


def _circulant(workers: int, shifts: Iterable[int]) -> Edges:
    return {(i, (i + shift) % workers) for i in range(workers) for shift in shifts}


def _shifted(name: str, workers: int, shifts: Iterable[int]) -> Graph:
    return Graph(name, (mixing_matrix(_circulant(workers, shifts), workers),))


def _weighted(name: str, edges: Edges, workers: int, weights: Weights) -> Graph:
    return Graph(name, (mixing_matrix(both_ways(edges), workers, weights),))


def _in_turn(name: str, rounds: list[Edges], workers: int, one_peer: bool) -> Graph:
    """A graph of all edges at once, or one that takes a set of them in each round."""
    steps = rounds if one_peer and rounds else [set().union(*rounds)]
    matrices = tuple(mixing_matrix(edges, workers) for edges in steps)
    return Graph(name, matrices)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, math.isqrt(number) + 1))


def _nearest(workers: int, fits: Callable[[int], bool]) -> str:
    below = next((str(n) for n in range(workers - 1, 0, -1) if fits(n)), None)
    above = next(str(n) for n in itertools.count(workers + 1) if fits(n))
    return f"{below} or {above}" if below else above

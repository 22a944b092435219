"""Graphs of workers: who hears whom in each round, and with which weights."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from jaxcomp.core.files import expanded
from jaxcomp.core.specs import Call, SpecError, build, error_at, method, parse, suggest
from jaxcomp.parallel.collectives import coloured

Weights = Literal["metropolis", "uniform", "max_degree"]
TOLERANCE = 1e-12  # of sums that are to be 1


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
    if weights not in (rules := get_args(Weights)):
        raise SpecError(f"unknown weights {weights!r}. {suggest(weights, rules)}")
    joined = np.zeros((size, size), bool)
    for source, destination in edges:
        joined[destination, source] = True
    hears = joined & ~np.eye(size, dtype=bool)
    counted = joined if weights == "max_degree" else hears
    degree = np.maximum(counted.sum(axis=0), counted.sum(axis=1))
    if weights == "uniform":
        degree = np.full(size, degree.max())
    own = 0.0 if weights == "max_degree" else 1.0
    matrix = hears / np.maximum(own + np.maximum.outer(degree, degree), 1)
    return matrix + np.diag(1.0 - matrix.sum(axis=1))


def check_mixing(matrices: list[np.ndarray]) -> None:
    """Refuse weights with which the workers would not agree on their mean.

    Args:
      matrices: [n, n] each, one a round.

    Example:
      >>> check_mixing([np.array([[0.5, 0.5], [0.25, 0.75]])])  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ...
      jaxcomp.SpecError: the weights worker 0 gives away (column 0) ...
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
    size, slots = len(matrix), []
    edges = [(int(j), int(i)) for i, j in np.argwhere(_linked(matrix))]
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % size, edge[0]))
    for destinations in coloured(edges, size).T:
        pairs = tuple((j, int(i)) for j, i in enumerate(destinations) if i >= 0)
        weights = np.zeros(size)
        for source, destination in pairs:
            weights[destination] = matrix[destination, source]
        slots.append(Slot(pairs, weights))
    return tuple(slots)


def _linked(matrix: np.ndarray) -> np.ndarray:
    """Which workers hear which others."""
    return (matrix != 0) & ~np.eye(len(matrix), dtype=bool)


Edges = set[tuple[int, int]]


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


_MOST = 4096  # workers: their weights are whole matrices


class Round(NamedTuple):
    """The messages that are sent at the same time: x_i <- sum_j W[i, j] x_j."""

    matrix: np.ndarray  # W, float64 [n, n], doubly stochastic
    slots: tuple[Slot, ...]  # the edges of W, without its diagonal


class Topology(NamedTuple):
    """A graph. One that changes with time has several rounds, which repeat in turn."""

    name: str
    size: int
    rounds: tuple[Round, ...]

    @property
    def matrix(self) -> np.ndarray:
        """The product W_r ... W_1 of a cycle; of a static graph, its mixing matrix."""
        product = self.rounds[0].matrix
        for later in self.rounds[1:]:
            product = later.matrix @ product
        return product

    @property
    def symmetric(self) -> bool:
        """Whether in every round W[i, j] = W[j, i]."""
        return all(np.array_equal(r.matrix, r.matrix.T) for r in self.rounds)

    @property
    def degree(self) -> int:
        """The largest number of workers from which one worker receives in a round."""
        return max(int(_linked(r.matrix).sum(axis=1).max()) for r in self.rounds)

    @property
    def spectral_gap(self) -> float:
        """See `spectral_gap`; with 1 a cycle gives the mean."""
        return spectral_gap([r.matrix for r in self.rounds])

    def __str__(self) -> str:
        slots = max(len(r.slots) for r in self.rounds)
        gap_of = " a round, over a cycle" if len(self.rounds) > 1 else ""
        messages = max(sum(len(s.pairs) for s in r.slots) for r in self.rounds)
        facts = {
            "workers": self.size,
            "rounds": f"{len(self.rounds)} in turn" if len(self.rounds) > 1 else 1,
            "degree": self.degree,
            "slots": f"{slots} a round, {messages} messages",
            "symmetric": "yes" if self.symmetric else "no",
            "spectral gap": f"{self.spectral_gap:.4g}{gap_of}",
        }
        lines = [f"  {what:<13} {value}" for what, value in facts.items()]
        return "\n".join([self.name, *lines])


def topology(spec: str | Call, n: int) -> Topology:
    """Build the graph that a spec string names, for n workers.

    Every W is non-negative and doubly stochastic, W 1 = 1 and 1^T W = 1^T, so that
    gossip keeps the mean; the graph is connected and its spectral gap is above 0.
    Other graphs are refused.

    Args:
      spec: such as 'ring', 'exponential(one_peer=True)' or "file(path='graph.txt')".
      n: number of workers.

    Example:
      >>> print(topology("ring", 8))
      ring
        workers       8
        rounds        1
        degree        2
        slots         2 a round, 16 messages
        symmetric     yes
        spectral gap  0.1953
      >>> topology("exponential(one_peer=True)", 4).matrix[0].tolist()
      [0.25, 0.25, 0.25, 0.25]

    References:
      Koloskova, Stich, Jaggi, Decentralized Stochastic Optimization and Gossip
      Algorithms with Compressed Communication, arXiv:1902.00340, 2019.
    """
    if not isinstance(n, int) or isinstance(n, bool) or not 0 < n <= _MOST:
        message = f"a topology needs a whole number of workers of 1 to {_MOST}, not {n}"
        raise SpecError(message)
    call = cast(Call, parse(spec) if isinstance(spec, str) else spec)
    graph: Graph = build(call, REGISTRY, "topology", n)
    try:
        check_mixing(list(graph.matrices))
    except ValueError as error:
        raise error_at(call, f"{call.name}: {error}") from error
    rounds = tuple(Round(matrix, decompose(matrix)) for matrix in graph.matrices)
    return Topology(graph.name, n, rounds)


@method(given=1)
def edges(
    name: str,
    workers: int,
    list: tuple[tuple[float, ...], ...],
    weights: Weights = "metropolis",
    directed: bool = False,
) -> Graph:
    """Edges in the spec itself, such as edges(list=[[0, 1], [1, 2]]).

    Args:
      workers: numbered from 0.
      list: (i, j) or (i, j, weight) each. (i, i, weight) is the weight of i's own
        value; without it, i keeps the rest.
      weights: 'metropolis' or 'uniform', for edges without weights.
      directed: (i, j) is a message from i to j only; by default also from j to i.
    """
    if not isinstance(list, tuple):
        raise SpecError(f"list holds edges such as [0, 1], not {list!r}")
    entries = ((f"edge {k}, {_shown(e)}", e) for k, e in enumerate(list, 1))
    return Graph(name, (_matrix_of(entries, workers, weights, directed),))


@method(given=1)
def file(
    name: str,
    workers: int,
    path: str,
    weights: Weights = "metropolis",
    directed: bool = False,
) -> Graph:
    """Edges in a text file: `i j` or `i j weight` a line, # starts a comment.

    Args:
      workers: numbered from 0.
      path: the file.
      weights: as those of `edges`.
      directed: as that of `edges`.
    """
    try:
        lines = expanded(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise SpecError(f"cannot read {path}: {reason}") from error
    entries = (
        (f"line {k} of {path}, {line.strip()!r}", tuple(map(_number, words)))
        for k, line in enumerate(lines, 1)
        if (words := line.partition("#")[0].split())
    )
    return Graph(name, (_matrix_of(entries, workers, weights, directed),))


REGISTRY: dict[str, Callable[..., Graph]] = NAMED | {"edges": edges, "file": file}


def _matrix_of(
    entries: Iterable[tuple[str, Any]], workers: int, weights: str, directed: bool
) -> np.ndarray:
    """The matrix of (place for messages, edge) pairs."""
    found: dict[tuple[int, int], float | None] = {}
    weighted = None
    for place, entry in entries:
        try:
            i, j, weight = _checked(entry, workers)
            weighted = weight is not None if weighted is None else weighted
            if weighted != (weight is not None):
                raise SpecError("either all edges have a weight or none has")
            for pair in [(i, j)] if directed else [(i, j), (j, i)]:
                if found.setdefault(pair, weight) != weight:
                    raise SpecError(f"the same edge has weight {found[pair]} before")
        except ValueError as error:
            raise SpecError(f"{place}: {error}") from None
    if not weighted:
        return mixing_matrix(found, workers, weights)
    matrix = np.zeros((workers, workers))
    for (source, destination), weight in found.items():
        matrix[destination, source] = weight
    rest = 1 - (matrix - np.diag(np.diag(matrix))).sum(axis=1)
    for i in set(range(workers)) - {i for i, j in found if i == j}:
        matrix[i, i] = rest[i]
    return matrix


def _checked(entry: Any, workers: int) -> tuple[int, int, float | None]:
    if not isinstance(entry, tuple) or len(entry) not in (2, 3):
        raise SpecError("an edge is two workers and, if it has one, its weight")
    for worker in entry[:2]:
        if not isinstance(worker, int) or isinstance(worker, bool):
            raise SpecError(f"{_shown(worker)} is not the number of a worker")
        if not 0 <= worker < workers:
            raise SpecError(f"there is no worker {worker}, only 0 to {workers - 1}")
    if len(entry) == 2:
        if entry[0] == entry[1]:
            raise SpecError("an edge joins two different workers")
        return entry[0], entry[1], None
    weight = entry[2]
    if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
        raise SpecError(f"{_shown(weight)} is not a weight of 0 or more")
    return entry[0], entry[1], float(weight)


def _number(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def _shown(value: Any) -> str:
    return repr(list(value)) if type(value) is tuple else repr(value)


_MOST_SHOWN = 2000  # edges; of more, nobody could follow one


def picture(graph: Topology, spec: str) -> dict[str, Any]:
    """The nodes, edges and facts of a graph.

    Args:
      graph: that the spec names.
      spec: says how its workers stand: a grid for a torus, a hub for a star.

    Returns:
      `rounds` holds lists of (from, to, weight).

    Example:
      >>> shown = picture(topology("ring", 3), "ring")
      >>> shown["degree"], shown["layout"], shown["rounds"][0][0][:2]
      (2, ['circle', 3], [0, 1])
    """
    rounds = [
        [
            [int(j), int(i), float(step.matrix[i, j])]
            for slot in step.slots
            for j, i in slot.pairs
        ]
        for step in graph.rounds
    ]
    return {
        "name": graph.name,
        "workers": graph.size,
        "degree": graph.degree,
        "spectral_gap": graph.spectral_gap,
        "layout": _layout(graph, spec),
        "rounds": rounds,
    }


def graph_facts(spec: str, workers: int) -> dict[str, Any]:
    """What environment.json says of the graph of a run, from which its report draws it.

    Args:
      spec: of the topology, "" for none.
      workers: of the run.

    Example:
      >>> graph_facts("", 4), graph_facts("star", 4)["graph"]["layout"]
      ({}, ['hub', 4])
    """
    if not spec:
        return {}
    shown = picture(topology(spec, workers), spec)
    is_clear = sum(map(len, shown["rounds"])) <= _MOST_SHOWN
    return {"graph": shown} if is_clear else {}


def _layout(graph: Topology, spec: str) -> list[Any]:
    """The name of a layout, and the sizes that it needs."""
    call = parse(spec)
    assert isinstance(call, Call)  # the graph was built from it
    if call.name == "social":
        return ["two_columns", 18, 14]
    if call.name == "torus":
        return ["grid", *torus_sides(graph.size, *call.args, **call.kwargs)]
    return ["hub" if call.name == "star" else "circle", graph.size]

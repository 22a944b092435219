"""Communication graphs: who receives from whom in a round, and the weights."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from jaxcomp.files import expanded
from jaxcomp.gossip import _weights
from jaxcomp.gossip._slots import Slot, decompose
from jaxcomp.gossip.graphs import NAMED, Graph, Weights
from jaxcomp.specs import Call, SpecError, build, error_at, method, parse

__all__ = ["REGISTRY", "Round", "Slot", "Topology", "topology"]

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
        return max(
            sum(bool(slot.weights[i]) for slot in r.slots)
            for r in self.rounds
            for i in range(self.size)
        )

    @property
    def spectral_gap(self) -> float:
        """See `jaxcomp.gossip._weights.spectral_gap`; with 1 a cycle gives the mean."""
        return _weights.spectral_gap([r.matrix for r in self.rounds])

    @property
    def connected(self) -> bool:
        """Whether messages reach every worker, over all rounds of a cycle together."""
        return _weights.is_connected(r.matrix for r in self.rounds)

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
        _weights.check_mixing(list(graph.matrices))
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
        return _weights.mixing_matrix(found, workers, weights)
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

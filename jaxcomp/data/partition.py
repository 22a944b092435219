"""Partitions: which examples belong to which worker, and in which order it sees them.

The shares may be alike (all, random) or differ in their classes (sorted, dirichlet), as
in decentralised training. `batches` cuts what a worker owns into batches.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.errors import UserError
from jaxcomp.specs import suggest

__all__ = ["PARTITIONS", "Partition", "make_partition", "orders"]

# Numbers of the random streams, so that no two draws are the same.
_SHARES, _ORDERS = 0, 1
# Outside of these the draw does not change any more, but its gammas under- or overflow.
_ALPHAS = (1e-8, 1e8)


class Partition(NamedTuple):
    """Who owns what: n examples, k workers, and n // k examples for each."""

    name: str
    examples: int  # in the whole set
    workers: int
    seed: int
    shares: Callable[[int], np.ndarray]  # epoch -> int64 [workers, examples of each]


def everything(labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Each worker owns the whole set and goes through it in an order of its own.

    An epoch is as many steps as for the other kinds, so that a worker sees one part in
    `workers` of the set in it, and different workers may see the same example.
    """
    shares = np.broadcast_to(np.arange(len(labels)), (workers, len(labels)))
    return _fixed("all", labels, seed, shares)


def random(
    labels: np.ndarray, workers: int, seed: int, reshuffle: bool = False
) -> Partition:
    """Equal shares of a permutation.

    Args:
      labels: [examples].
      workers: their number.
      seed: seed of the run.
      reshuffle: deal new shares each epoch; the examples left over differ then too.
    """
    if not isinstance(reshuffle, bool):
        raise UserError(f"reshuffle is True or False, not {reshuffle!r}")

    def shares(epoch: int) -> np.ndarray:
        generator = _generator(_SHARES, seed, epoch if reshuffle else 0)
        return _cut(generator.permutation(len(labels)), workers)

    if not reshuffle:
        return _fixed("random", labels, seed, shares(0))
    return Partition("random(reshuffle=True)", len(labels), workers, seed, shares)


def contiguous(labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Equal shares in the order in which the examples are given."""
    shares = _cut(np.arange(len(labels)), workers)
    return _fixed("contiguous", labels, seed, shares)


def by_label(labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Equal shares in the order of the labels: each worker sees few classes.

    With k classes of equal size and k workers, each worker sees one class. Examples of
    one class keep their order.
    """
    shares = _cut(np.argsort(labels, kind="stable"), workers)
    return _fixed("sorted", labels, seed, shares)


def dirichlet(
    labels: np.ndarray, workers: int, seed: int, alpha: float = 1.0
) -> Partition:
    """Shares with uneven classes: each class is dealt by p ~ Dirichlet(alpha, ...).

    A small alpha gives most of a class to one worker, a large one deals it evenly.
    Workers then own different numbers of examples, but take the same number of steps.
    So whoever owns too many gives some up, drawn evenly, and keeps its mixture. These
    go class by class to those who own too few. No example is used twice.

    Args:
      labels: [examples].
      workers: their number.
      seed: seed of the run.
      alpha: evenness, above 0.

    References:
      Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks,
      arXiv:1905.12022, 2019. Sizes are not made equal there.
    """
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not 0 < alpha < math.inf:
        raise UserError(f"alpha is a number above 0 such as 0.1, not {alpha!r}")
    generator = _generator(_SHARES, seed, 0)
    owned: list[list[np.ndarray]] = [[] for _ in range(workers)]
    labels = np.unique(labels, return_inverse=True)[1]
    evenness = np.full(workers, np.clip(alpha, *_ALPHAS))
    for label in generator.permutation(labels.max() + 1):
        members = generator.permutation(np.flatnonzero(labels == label))
        borders = np.cumsum(generator.dirichlet(evenness))[:-1] * len(members)
        parts = np.split(members, np.rint(borders).astype(int))
        for mine, part in zip(owned, parts, strict=True):
            mine.append(part)
    shares = _equalised([np.concatenate(parts) for parts in owned], labels, generator)
    return _fixed(f"dirichlet(alpha={alpha!r})", labels, seed, shares)


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "all": everything,
    "contiguous": contiguous,
    "dirichlet": dirichlet,
    "random": random,
    "sorted": by_label,
}


def make_partition(
    name: str, labels: np.ndarray, *, workers: int, seed: int, **options: Any
) -> Partition:
    """Divide a training set between workers, by the name of a way.

    Shares are disjoint, except for `all`, and of equal size. If `workers` does not
    divide the number of examples, up to `workers - 1` of them belong to nobody.

    Args:
      name: a key of `PARTITIONS`.
      labels: of all examples, [examples].
      workers: their number.
      seed: seed of the run, not negative.
      **options: of the way, such as alpha of dirichlet.

    Raises:
      UserError: an unknown name or option, a bad value, fewer examples than workers.

    Example:
      >>> labels = np.array([1, 0, 1, 0])
      >>> make_partition("sorted", labels, workers=2, seed=0).shares(0).tolist()
      [[1, 3], [0, 2]]
    """
    if name not in PARTITIONS:
        raise UserError(f"unknown partition {name!r}. {suggest(name, PARTITIONS)}")
    factory = PARTITIONS[name]
    known = list(inspect.signature(factory).parameters)[3:]
    for option in options:
        if option not in known:
            hint = suggest(option, known)
            raise UserError(f"partition {name!r} has no option {option!r}. {hint}")
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise UserError(f"labels are one for each example, not {labels.shape}")
    if not isinstance(workers, int) or not 1 <= workers <= len(labels):
        raise UserError(
            f"{workers!r} workers cannot share {len(labels)} examples: "
            f"give 1 to {len(labels)}"
        )
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"a seed is a whole number from 0, not {seed!r}")
    return factory(labels, workers, seed, **options)


def orders(divided: Partition, epoch: int) -> list[np.ndarray]:
    """For each worker, the order in which it goes through its share in an epoch."""
    return [
        _generator(_ORDERS, divided.seed, epoch, worker).permutation(share)
        for worker, share in enumerate(divided.shares(epoch))
    ]


def _fixed(name: str, labels: np.ndarray, seed: int, shares: np.ndarray) -> Partition:
    """A partition whose shares are the same in every epoch."""
    shares.setflags(write=False)
    return Partition(name, len(labels), len(shares), seed, lambda epoch: shares)


def _cut(order: np.ndarray, workers: int) -> np.ndarray:
    """Equal runs of an order, [workers, len(order) // workers].

    What is left over lies between the runs: at the end it would all be of one class.
    """
    each, left = divmod(len(order), workers)
    worker = np.arange(workers)
    starts = worker * each + (worker * left + workers // 2) // workers
    return order[starts[:, None] + np.arange(each)]


def _equalised(
    owned: list[np.ndarray], labels: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Move examples from those who own too many to those who own too few."""
    size = len(labels) // len(owned)
    owned = [generator.permutation(mine) for mine in owned]
    room = [max(size - len(mine), 0) for mine in owned]
    surplus = generator.permutation(np.concatenate([mine[size:] for mine in owned]))
    surplus = surplus[: sum(room)]
    # Class by class, so that a worker without examples gets few classes, as alpha asks.
    surplus = surplus[np.argsort(labels[surplus], kind="stable")]
    pairs = zip(owned, np.split(surplus, np.cumsum(room)[:-1]), strict=True)
    return np.stack([np.concatenate([mine[:size], gift]) for mine, gift in pairs])


def _generator(
    stream: int, seed: int, epoch: int, worker: int = 0
) -> np.random.Generator:
    """Random numbers that depend on these four alone."""
    source = np.random.SeedSequence([seed, epoch], spawn_key=(stream, worker))
    return np.random.Generator(np.random.Philox(source))

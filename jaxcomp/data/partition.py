"""Which worker sees which example at which step: partitions and batches, in NumPy.

Either all workers share one order of the whole set, and `batches` gives each of them an
equal part of every global batch; or each worker owns a share of the examples, which
`worker_batches` cuts. Shares may be alike (all, random) or differ in their classes
(sorted, dirichlet), as in decentralised training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Call, Positive, build, method, parse

# Keys of the random streams: the shares and the orders are drawn independently.
_SHARES, _ORDERS = 0, 1
# Outside of this range the draw no longer changes, but its gamma variables overflow or
# underflow.
_ALPHAS = (1e-8, 1e8)


class Partition(NamedTuple):
    """Which of n examples belong to which of k workers: n // k of them to each."""

    name: str
    examples: int  # in the whole set
    workers: int
    seed: int
    shares: Callable[[int], np.ndarray]  # epoch -> int64 [workers, examples of each]


@method(given=3)
def _all(name: str, labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Each worker owns the whole set and goes through it in an order of its own.

    An epoch has as many steps as with the other partitions, so a worker sees one part
    in `workers` of the set per epoch, and different workers may see the same example.
    """
    shares = np.broadcast_to(np.arange(len(labels)), (workers, len(labels)))
    return fixed_partition(name, labels, seed, shares)


@method(given=3)
def random(
    name: str, labels: np.ndarray, workers: int, seed: int, reshuffle: bool = False
) -> Partition:
    """Equal shares of a random permutation of the examples.

    Args:
      labels: [examples].
      workers: their number.
      seed: seed of the run.
      reshuffle: draw new shares in each epoch; if `workers` does not divide the number
        of examples, the examples that belong to nobody change with them.
    """

    def shares(epoch: int) -> np.ndarray:
        generator = _generator(_SHARES, seed, epoch if reshuffle else 0)
        return _cut(generator.permutation(len(labels)), workers)

    if not reshuffle:
        return fixed_partition(name, labels, seed, shares(0))
    return Partition(name, len(labels), workers, seed, shares)


@method(given=3)
def contiguous(name: str, labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Equal shares in the order in which the examples are stored."""
    return fixed_partition(name, labels, seed, _cut(np.arange(len(labels)), workers))


@method(given=3)
def _sorted(name: str, labels: np.ndarray, workers: int, seed: int) -> Partition:
    """Equal shares of the examples sorted by label: each worker sees few classes.

    With k classes of equal size and k workers, each worker sees one class. Examples of
    one class keep their order.
    """
    shares = _cut(np.argsort(labels, kind="stable"), workers)
    return fixed_partition(name, labels, seed, shares)


@method("alpha", given=3)
def dirichlet(
    name: str, labels: np.ndarray, workers: int, seed: int, alpha: Positive = 1.0
) -> Partition:
    """Shares with uneven classes: of each class, worker i gets the fraction p_i.

    p ~ Dirichlet(alpha, ..., alpha) is drawn for each class. A small alpha gives most
    of a class to one worker, a large one divides it evenly. The shares are then made
    equal in size, because all workers take the same number of steps: a worker with too
    many examples gives up randomly chosen ones, so that its mixture of classes stays,
    and these go, class by class, to the workers that have too few. No example is used
    twice.

    Args:
      labels: [examples].
      workers: their number.
      seed: seed of the run.
      alpha: concentration of the Dirichlet distribution.

    References:
      Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks,
      arXiv:1905.12022, 2019. Sizes are not made equal there.
    """
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
    return fixed_partition(name, labels, seed, shares)


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "all": _all,
    "contiguous": contiguous,
    "dirichlet": dirichlet,
    "random": random,
    "sorted": _sorted,
}


def make_partition(
    spec: str, labels: np.ndarray, *, workers: int, seed: int, **options: Any
) -> Partition:
    """Divide a training set among workers, as a spec string says.

    Shares are disjoint, except for `all`, and of equal size. If `workers` does not
    divide the number of examples, up to `workers - 1` of them belong to nobody.

    Args:
      spec: a name in `PARTITIONS`, with or without arguments.
      labels: of all examples, [examples].
      workers: their number.
      seed: seed of the run, not negative.
      **options: further arguments of the spec.

    Raises:
      UserError: an unknown name or argument, a bad value, or fewer examples than
        workers.

    Example:
      >>> labels = np.array([1, 0, 1, 0])
      >>> make_partition("sorted", labels, workers=2, seed=0).shares(0).tolist()
      [[1, 3], [0, 2]]
    """
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
    call = parse(spec)
    if isinstance(call, Call):
        call = call._replace(kwargs={**call.kwargs, **options})
    return build(call, PARTITIONS, "partition", labels, workers, seed)


def orders(divided: Partition, epoch: int) -> list[np.ndarray]:
    """For each worker, the order in which it goes through its share in an epoch."""
    return [
        _generator(_ORDERS, divided.seed, epoch, worker).permutation(share)
        for worker, share in enumerate(divided.shares(epoch))
    ]


def fixed_partition(
    name: str, labels: np.ndarray, seed: int, shares: np.ndarray
) -> Partition:
    """A partition with the same shares in every epoch.

    Args:
      name: its spec string.
      labels: [examples].
      seed: seed of the run.
      shares: int64 [workers, examples of each]; it becomes read-only.
    """
    shares.setflags(write=False)
    return Partition(name, len(labels), len(shares), seed, lambda epoch: shares)


def _cut(order: np.ndarray, workers: int) -> np.ndarray:
    """Equal contiguous pieces of an order, [workers, len(order) // workers].

    The examples that are left over lie between the pieces: if all of them lay at the
    end of an order by labels, they would all be of its last class.
    """
    each, left = divmod(len(order), workers)
    worker = np.arange(workers)
    starts = worker * each + (worker * left + workers // 2) // workers
    return order[starts[:, None] + np.arange(each)]


def _equalised(
    owned: list[np.ndarray], labels: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Move examples from workers that have too many to workers that have too few."""
    size = len(labels) // len(owned)
    owned = [generator.permutation(mine) for mine in owned]
    room = [max(size - len(mine), 0) for mine in owned]
    surplus = generator.permutation(np.concatenate([mine[size:] for mine in owned]))
    surplus = surplus[: sum(room)]
    # Sorted by class, so that a worker that had no examples gets few classes, which is
    # what a small alpha asks for.
    surplus = surplus[np.argsort(labels[surplus], kind="stable")]
    pairs = zip(owned, np.split(surplus, np.cumsum(room)[:-1]), strict=True)
    return np.stack([np.concatenate([mine[:size], gift]) for mine, gift in pairs])


def _generator(
    stream: int, seed: int, epoch: int, worker: int = 0
) -> np.random.Generator:
    """A random generator that depends on these four numbers alone."""
    source = np.random.SeedSequence([seed, epoch], spawn_key=(stream, worker))
    return np.random.Generator(np.random.Philox(source))


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of examples in an epoch, which depends on (seed, epoch) alone.

    So a run that is resumed in epoch 7 need not repeat the shuffles of epochs 0 to 6.

    Args:
      num_examples: size of the training set.
      seed: seed of the run, not negative.
      epoch: number of the epoch, not negative.

    Returns:
      int64 [num_examples], every index once.

    Example:
      >>> sorted(epoch_order(4, seed=0, epoch=3).tolist())
      [0, 1, 2, 3]
    """
    # Philox is a counter-based generator with a stream fixed by its definition;
    # SeedSequence makes neighbouring (seed, epoch) pairs unrelated.
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    return np.random.Generator(bits).permutation(num_examples)


def batches(order: np.ndarray, *, global_batch: int, workers: int) -> np.ndarray:
    """Cut an epoch into global batches, and each of these into equal parts per worker.

    The global batch of a step does not depend on the number of workers, so runs on
    2 and on 8 workers see the same examples in each step. The last examples of the
    epoch are left out if they do not fill a batch.

    Args:
      order: indices of the epoch, from `epoch_order`.
      global_batch: examples per step over all workers.
      workers: number of workers; must divide `global_batch`.

    Returns:
      int [steps, workers, global_batch // workers].

    Raises:
      UserError: the workers do not divide the batch, or the batch is larger than
        the set.

    Example:
      >>> batches(np.arange(9), global_batch=4, workers=2).tolist()
      [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    """
    share = _share(global_batch, workers)
    steps = len(order) // global_batch
    if steps == 0:
        raise UserError(
            f"global batch {global_batch} is larger than the training set of "
            f"{len(order)} examples: give at most {len(order) // workers * workers} "
            f"for {workers} workers"
        )
    return order[: steps * global_batch].reshape(steps, workers, share)


def eval_batches(
    num_examples: int, *, batch: int, workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut an evaluation set into equal batches, padded by examples of weight 0.

    Args:
      num_examples: size of the evaluation set.
      batch: examples per step over all workers; may be larger than the set.
      workers: number of workers; must divide `batch`.

    Returns:
      Indices int64 and weights float32, both [steps, workers, batch // workers].
      Every index has weight 1 exactly once; padding repeats index 0 with weight 0.

    Raises:
      UserError: the workers do not divide the batch, or the set is empty.

    Example:
      >>> indices, weights = eval_batches(3, batch=2, workers=2)
      >>> indices.tolist(), weights.tolist()
      ([[[0], [1]], [[2], [0]]], [[[1.0], [1.0]], [[1.0], [0.0]]])
    """
    share = _share(batch, workers)
    if num_examples < 1:
        raise UserError(f"nothing to evaluate: the set has {num_examples} examples")
    steps = -(-num_examples // batch)
    position = np.arange(steps * batch).reshape(steps, workers, share)
    real = position < num_examples
    return np.where(real, position, 0), real.astype(np.float32)


def worker_batches(divided: Partition, *, epoch: int, global_batch: int) -> np.ndarray:
    """The batches of all workers in an epoch of a partitioned set.

    Each worker goes through its share in a new order each epoch. An epoch has
    examples // global_batch steps whatever the partition, so that it always means the
    same number of examples. What a worker leaves out in an epoch is less than one of
    its batches, and a different part of its share in every epoch.

    Args:
      divided: from `make_partition`.
      epoch: number of the epoch, not negative.
      global_batch: examples per step over all workers, which must divide it.

    Returns:
      int64 [steps, workers, global_batch // workers].

    Example:
      >>> divided = make_partition("contiguous", np.zeros(9), workers=2, seed=0)
      >>> worker_batches(divided, epoch=0, global_batch=4).shape
      (2, 2, 2)
    """
    if epoch < 0:
        raise UserError(f"epochs count from 0, not {epoch}")
    # This call checks the sizes and gives the number of steps.
    whole = np.arange(divided.examples)
    steps, workers, each = batches(
        whole, global_batch=global_batch, workers=divided.workers
    ).shape
    cut = [order[: steps * each] for order in orders(divided, epoch)]
    return np.stack(cut).reshape(workers, steps, each).swapaxes(0, 1)


def _share(batch: int, workers: int) -> int:
    """Examples per worker, or an error that names the nearest valid batches."""
    if workers < 1:
        raise UserError(f"{workers} workers: give 1 or more")
    if batch >= 1 and batch % workers == 0:
        return batch // workers
    below = max(batch, 0) // workers * workers
    nearest = [str(size) for size in (below, below + workers) if size > 0]
    raise UserError(
        f"a global batch of {batch} cannot be divided between {workers} workers; "
        f"nearest valid: {' or '.join(nearest)}"
    )

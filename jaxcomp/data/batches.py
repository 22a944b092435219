"""Batches: which worker sees which example at which step. Plain NumPy on the host.

Either all workers share one order of the whole set, and `batches` gives each of them an
equal part of every global batch; or each worker owns a share of the examples (see
`partition`), and `worker_batches` cuts that.
"""

import numpy as np

from jaxcomp.core.errors import UserError
from jaxcomp.data.partition import Partition, orders


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
      >>> from jaxcomp.data import make_partition
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

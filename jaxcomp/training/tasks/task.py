"""Data, model, loss and measure as the trainer sees them."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxcomp import data
from jaxcomp.convex.averages import Average
from jaxcomp.core.specs import build, publish
from jaxcomp.core.types import Array, Tree
from jaxcomp.training.tasks.named import named_call


class Measure(NamedTuple):
    """The figure that a run shows, and by which it chooses its best checkpoint.

    It is a column of steps.csv, and of metrics.csv after `train_`, `test_`, `own_` and
    `worst_`.
    """

    name: str
    of: Callable[[float, float], float]  # (mean loss, share of hits) -> value
    text: Callable[[float], str]
    larger: bool = True  # is better

    def beats(self, value: float, best: float | None) -> bool:
        """Whether a value is better than the best so far; None is worse than any.

        Example:
          >>> PERPLEXITY.beats(3.0, 4.0), ACCURACY.beats(0.3, 0.4)
          (True, False)
        """
        return best is None or (value > best if self.larger else value < best)

    def better(self, value: float, best: float | None) -> float:
        """The better of a value and the best so far."""
        return value if best is None or self.beats(value, best) else best

    def worst(self, values: list[float]) -> float:
        """The worst of several values."""
        return min(values) if self.larger else max(values)


def _perplexity(loss: float, hits: float) -> float:
    del hits
    return math.exp(loss) if loss < 700 else math.inf


ACCURACY = Measure("accuracy", lambda loss, hits: hits, "{:.2%}".format)
PERPLEXITY = Measure("perplexity", _perplexity, "{:,.2f}".format, larger=False)


# Arrays whose first axis counts the examples.
Batch: TypeAlias = tuple[Any, ...]
# epoch -> indices [steps, workers, examples of a step]; depends on the epoch alone
Shares: TypeAlias = Callable[[int], np.ndarray]


class Variables(NamedTuple):
    """The variables of a model: parameters and statistics."""

    params: Tree
    # Running statistics, such as those of BatchNorm; {} for none. Workers go on with
    # their own during an epoch, and the mean over workers is evaluated.
    stats: Tree


class Learnt(NamedTuple):
    """The results of a batch beside its loss."""

    stats: Tree
    carry: Tree
    accuracy: Array  # []; the larger, the better
    figures: Mapping[str, Array] = {}  # each []; those that the task names


class Sums(NamedTuple):
    """Totals over a batch of an evaluation; means are taken over `examples`."""

    loss: Array
    correct: Array
    examples: Array  # what is counted: images, or tokens
    figures: Mapping[str, Array] = {}  # those that the task names in `scored`


def _nothing(examples: int) -> Tree:
    return {}


class Task(NamedTuple):
    """Data, a model and a loss. All functions are those of one worker, and pure.

    The carry is what a batch hands on to the next one, such as the state of a recurrent
    network. Each worker has its own, which is never averaged. The first axis of each of
    its arrays counts the examples of a batch.
    """

    model: str  # what the console calls it
    data: str  # likewise
    # NumPy arrays, of which the first axis counts the examples; or `data.Pictures`.
    train: tuple[Any, ...]
    # In order, `config.eval_batch_size or config.batch_size` at a time: the carry of an
    # example goes to the one that comes so many later.
    test: tuple[Any, ...]
    shares: Shares  # which examples of `train` each worker sees, by epoch
    init: Callable[[Array], Variables]  # (key), the same on every worker
    # (params, stats, carry, batch, key) -> (mean loss, what else); augments too
    loss: Callable[[Tree, Tree, Tree, Batch, Array], tuple[Array, Learnt]]
    # (variables, carry, batch, weights) -> (totals, carry). Weights are one for each
    # example, and 0 for those that only fill up the last batch.
    score: Callable[[Variables, Tree, Batch, Array], tuple[Sums, Tree]]
    # (examples of a batch) -> the carry with which a run, or an evaluation, begins
    carry: Callable[[int], Tree] = _nothing
    figures: tuple[str, ...] = ()  # names of `Learnt.figures`: columns of steps.csv
    scored: tuple[str, ...] = ()  # names of `Sums.figures`: columns of metrics.csv
    measure: Measure = ACCURACY  # of loss and accuracy: what is shown, and what is best
    average: Average | None = None  # of the weights, evaluated too
    # Whether statistics are the same on all workers, as of a synchronised BatchNorm.
    shared_stats: bool = False
    # (config) -> the same data and model for another `batch_size` or `image_size`;
    # None for a task in which they cannot change during a run.
    resized: Callable[[Any], "Task"] | None = None


publish(partition=data.PARTITIONS)


def shares_of(config: Any, labels: np.ndarray, workers: int) -> Shares:
    """Make a function from an epoch to the examples of each worker and step.

    Args:
      config: its partition, batch_size, seed and devices_per_node.
      labels: of all training examples.
      workers: their number.

    Example:
      >>> from ml_collections import ConfigDict
      >>> config = ConfigDict({"partition": "sorted", "batch_size": 4, "seed": 0})
      >>> shares_of(config, np.array([1, 0, 1, 0]), workers=2)(0).shape
      (1, 2, 2)
    """
    batch, seed = config.batch_size, config.seed
    nodes = workers // config.get("devices_per_node", 1)

    def dealt(labels: np.ndarray, workers: int, seed: int) -> None:
        """No partition: each batch of one common order is divided."""

    known = {"dealt": dealt, **data.PARTITIONS}
    call = named_call(config.partition, "partition")
    divided = build(call, known, "partition", labels, nodes, seed)

    def of_epoch(epoch: int) -> np.ndarray:
        if divided is not None:
            found = data.worker_batches(divided, epoch=epoch, global_batch=batch)
            # The devices of a node divide each of its batches.
            return found.reshape(len(found), workers, -1)
        order = data.epoch_order(len(labels), seed=seed, epoch=epoch)
        return data.batches(order, global_batch=batch, workers=workers)

    return of_epoch

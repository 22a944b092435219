"""The interface between the trainer and a task: its data, model and loss."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxcomp.base import Array, Tree
from jaxcomp.tasks.measure import ACCURACY, Measure

__all__ = ["Batch", "Learnt", "Shares", "Sums", "Task", "Variables"]

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
    # NumPy arrays, of which the first axis counts the examples; or `data.Pictures`, and
    # in `test` also `data.Rectangles`.
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
    shared_stats: bool = (
        False  # the same on all workers, as of a synchronised BatchNorm
    )
    # (config) -> the same data and model for another `batch_size` or `image_size`;
    # None for a task in which they cannot change during a run.
    resized: Callable[[Any], "Task"] | None = None

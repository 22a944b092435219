"""Regimes with other batches or pictures: their tasks, and the batches of a run."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import parallel
from jaxcomp.data import Rectangles
from jaxcomp.errors import UserError, message_of, within
from jaxcomp.tasks import Batch, Task, Variables
from jaxcomp.training.calendar import Phase
from jaxcomp.training.precision import with_precision
from jaxcomp.training.regimes import Regime, Regimes
from jaxcomp.trees import name_of

__all__ = ["batches_from", "tasks_of"]

_SIZES = ("batch_size", "image_size")


def tasks_of(
    task: Task, regimes: Regimes, config: Any, workers: parallel.Workers
) -> tuple[Task, ...]:
    """The task of each regime; regimes of the same sizes share one.

    Args:
      task: that the config makes.
      regimes: of the run.
      config: of the run.
      workers: of the run.

    Raises:
      UserError: a batch or pictures do not suit the task or model; names the regime.
    """
    if config.image_size and task.resized is None:
        raise _of_one_size(task, "image_size")
    made = {_sizes(config): with_precision(task, config.matmul_precision)}
    for regime in regimes.each:
        sizes, phase = _sizes(regime.config), regimes.calendar.at(regime.first)
        place = within(f"regime {regime.when!r}")
        with place if regime.settings else contextlib.nullcontext():
            if sizes not in made:
                other = _resized(task, regime)
                made[sizes] = with_precision(other, config.matmul_precision)
            _check_shares(made[sizes], phase, workers.size)
            if regime.config.image_size or isinstance(task.test[0], Rectangles):
                first = made[_sizes(regimes.each[0].config)]
                _check_model(made[sizes], first, regime.config)
    return tuple(made[_sizes(regime.config)] for regime in regimes.each)


def batches_from(
    start: int,
    regimes: Regimes,
    tasks: tuple[Task, ...],
    feed: Callable[[Task, int], Iterator[Batch]],
) -> Iterator[Batch]:
    """The batches of a run from a step on, without end.

    Args:
      start: the number of that step, from 0.
      regimes: of the run.
      tasks: of the regimes.
      feed: the batches of a task from a step on, had the run only steps like those.
    """
    now = regimes.at(start)
    others = [
        regime.first
        for number, regime in enumerate(regimes.each)
        if number > now and tasks[number] is not tasks[now]
    ]
    batches = feed(tasks[now], regimes.calendar.at(start).as_if(start))
    if not others:
        yield from batches
        return
    yield from itertools.islice(batches, others[0] - start)
    del batches  # what it keeps on the devices goes before the next one comes
    yield from batches_from(others[0], regimes, tasks, feed)


def _sizes(config: Any) -> tuple[int, ...]:
    return tuple(config[key] for key in _SIZES)


def _resized(task: Task, regime: Regime) -> Task:
    if task.resized is None:
        raise _of_one_size(task, next(key for key in _SIZES if key in regime.settings))
    return task.resized(regime.config)


def _of_one_size(task: Task, key: str) -> UserError:
    message = f"{key} does not change in a run on {task.data}"
    return UserError(f"{message}: its task makes batches of one size")


def _check_shares(task: Task, phase: Phase, workers: int) -> None:
    steps, batch = phase.horizon
    found, wanted = task.shares(0).shape, (steps, workers, batch // workers)
    if found != wanted or not all(wanted):
        raise UserError(
            f"the task's shares are {list(found)} [steps, workers, examples of a step] "
            "in an epoch, and its data, batch_size and workers make that "
            f"{list(wanted)}, of which none may be 0"
        )


def _check_model(task: Task, first: Task, config: Any) -> None:
    """Refuse pictures that the model cannot take, or that make it another model."""
    key = jax.eval_shape(lambda: jax.random.key(0))

    def scored(variables: Variables) -> Any:
        test = tuple(jnp.zeros((1, *x.shape[1:]), x.dtype) for x in task.test)
        return task.score(variables, task.carry(1), test, jnp.ones(1))

    def shapes(task: Task) -> dict[str, Any]:
        variables = jax.eval_shape(task.init, key)
        leaves, _ = jax.tree_util.tree_flatten_with_path(variables.params)
        return {name_of(path): leaf.shape for path, leaf in leaves}

    try:
        found, wanted = shapes(task), shapes(first)
        jax.eval_shape(scored, jax.eval_shape(first.init, key))
    except Exception as error:  # a model's own, of any type
        raise UserError(
            f"the model cannot take pictures as image_size={config.image_size} and "
            f"eval_view={config.eval_view!r} make them: {message_of(error)}"
        ) from error
    for name, shape in wanted.items():
        if found.get(name) != shape:
            raise UserError(
                f"image_size={config.image_size} makes another model: {name} is "
                f"{found.get(name)}, not {shape}. Take one that averages over the "
                "picture before its last layer"
            )

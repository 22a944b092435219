"""A run whose batch, images or optimiser change at epochs: regimes and phases."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp import parallel
from jaxcomp.core.errors import UserError, message_of, within
from jaxcomp.core.specs import Call, check, parse, suggest
from jaxcomp.core.trees import name_of
from jaxcomp.core.types import Array
from jaxcomp.data import Rectangles
from jaxcomp.runs.folder import check_fit, check_keys, whole_batches
from jaxcomp.runs.keys import KEYS
from jaxcomp.training.calendar import Calendar, Phase, calendar_of
from jaxcomp.training.keys import check_one_batch
from jaxcomp.training.schedules import Horizon, Schedule, learning_rate
from jaxcomp.training.tasks import Batch, Task, Variables
from jaxcomp.training.tasks.named import MODEL

PRECISIONS = ("bfloat16", "tensorfloat32", "float32")  # from the fastest


def with_precision(task: Task, precision: str) -> Task:
    """The task with products of a precision, in its loss, gradient and score.

    Products of the method, such as those of power_sgd, stay as they are.

    Args:
      task: any.
      precision: one of `PRECISIONS`; "" leaves it to the device.
    """
    if not precision:
        return task
    if precision not in PRECISIONS:
        valid = ", ".join(PRECISIONS)
        raise UserError(f"unknown matmul_precision {precision!r}. Valid: {valid}")

    def precise(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return function(*args)

        return call

    return task._replace(loss=precise(task.loss), score=precise(task.score))


# What may change. All stages of a run exchange with the same state, so what is sent is
# none of them.
CHANGING = tuple(name for name, key in KEYS.items() if key.inside)
_EXAMPLE = "('30 epochs', {'learning_rate': 0.01})"


class Regime(NamedTuple):
    """What holds from a step on."""

    first: int  # step, from 0
    settings: Mapping[str, Any]  # that change there
    config: Any  # of the run, with all that changed so far
    when: str = "0 epochs"  # as it is written

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"from step {self.first + 1} on: {shown}"


class Regimes(NamedTuple):
    """The regimes of a run, of which the first begins with it."""

    each: tuple[Regime, ...]
    calendar: Calendar  # of the run, as their batches make it

    def at(self, step: int) -> int:
        """The number of the regime of a step, which counts from 0 as it does."""
        return sum(regime.first <= step for regime in self.each) - 1

    def rate_of(self, rates: Sequence[Schedule]) -> Schedule:
        """The rate of a step, from those of the regimes; a traced step will do."""
        if len(rates) == 1:
            return rates[0]

        def rate(step: Any) -> Array:
            begun = [step >= regime.first for regime in self.each[1:]]
            number = jnp.sum(jnp.stack([jnp.asarray(x, jnp.int32) for x in begun]))
            return jnp.stack([rate(step) for rate in rates])[number]

        return rate

    def begins(self, step: int) -> bool:
        """Whether a regime but the first begins with a step."""
        return any(regime.first == step for regime in self.each[1:])


def make_regimes(config: Any, examples: int, of_model: Sequence[Any]) -> Regimes:
    """The regimes of a config; one, if it has no `regime`.

    Args:
      config: its regime: pairs of a duration and the settings that change then. The
        word "model" stands for those of the model, and may be the whole regime.
      examples: of the training set.
      of_model: the regime that the model brings, () for none.
    """
    each = [Regime(0, {}, config)]
    calendar = calendar_of(_horizon(config, examples))
    for when, settings in _pairs(config.regime, of_model):
        with within(f"regime {when!r}"):
            first = calendar.steps_of(when, may_be_zero=True)
            regime = _next(each[-1], Regime(first, settings, config, when))
            calendar = calendar.then(first, _horizon(regime.config, examples))
        replaced = regime.first == 0 and len(each) == 1
        each = [regime] if replaced else [*each, regime]
    return Regimes(tuple(each), calendar)


def rates_of(
    regimes: Regimes,
    *,
    total: int,
    warmup: int,
    workers: int,
    degree: int | None,
) -> list[Schedule]:
    """The learning rate of each regime, as a function of the step of the run.

    Schedules and warm-up go by epochs: where the batch changes, they go on at the same
    epoch, in larger or smaller steps.

    Args:
      regimes: of the run.
      total: steps of the run.
      warmup: steps of the ramp.
      workers: as in `learning_rate`.
      degree: likewise.
    """
    calendar = regimes.calendar

    def rate_of(regime: Regime) -> Schedule:
        phase, config = calendar.at(regime.first), regime.config
        rate = learning_rate(
            config.learning_rate,
            config.schedule,
            horizon=phase.horizon,
            total=calendar.seen_from(phase, total),
            warmup=calendar.seen_from(phase, warmup),
            warmup_from=config.warmup_from,
            scaling=config.lr_scaling,
            workers=workers,
            degree=degree,
        )
        shift = phase.as_if(0)
        return (lambda step: rate(jnp.asarray(step) + shift)) if shift else rate

    return [rate_of(regime) for regime in regimes.each]


def _horizon(config: Any, examples: int) -> Horizon:
    batch = config.batch_size
    return Horizon(whole_batches(examples, batch), batch)


def _pairs(regime: Sequence[Any], of_model: Sequence[Any]) -> list[tuple[str, Any]]:
    """All pairs of a regime, those of the model among them."""
    pairs: list[Any] = []
    for entry in [regime] * bool(regime) if isinstance(regime, str) else regime:
        if entry == MODEL and not of_model:
            raise UserError(
                f"regime {MODEL!r}: the model brings none. Write {_EXAMPLE}"
            )
        pairs += of_model if entry == MODEL else [entry]
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or not _is_moment(pair[0]) or not _is_settings(pair[1]):
            raise UserError(
                f"a regime is made of pairs such as {_EXAMPLE}, and of the word "
                f"{MODEL!r} for those of the model, not of {pair!r}"
            )
    return pairs


def _is_moment(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _next(before: Regime, regime: Regime) -> Regime:
    """The regime after another one, with the config that holds in it."""
    first, settings = regime.first, regime.settings
    if before.settings and first <= before.first:
        message = f"begins at step {first + 1}, and the one before it at step"
        raise UserError(f"{message} {before.first + 1}: a later one is later")
    for key, value in settings.items():
        if key not in CHANGING:
            raise UserError(
                f"{key} does not change during a run. {suggest(key, CHANGING)}"
            )
        check(KEYS[key].kind, key, value)
    config = before.config.copy_and_resolve_references()
    config.update(settings)
    check_keys(config)
    if "batch_size" in settings:
        check_one_batch(config)
        check_fit(config.workers, config.batch_size, config.accumulate)
    _check_optimizer(before.config, config, first)
    return regime._replace(settings=dict(settings), config=config)


def _check_optimizer(before: Any, config: Any, first: int) -> None:
    """Refuse an optimiser that has to be there from the first step."""
    old, new = (_name(c.optimizer) for c in (before, config))
    if first and new == "one_bit_adam" and old != new:
        raise UserError(
            f"optimizer {config.optimizer!r} learns its variance in the first steps of "
            "a run: begin with it, or take 'adam'"
        )


def _name(optimizer: str) -> str:
    call = parse(optimizer)
    return call.name if isinstance(call, Call) else ""


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

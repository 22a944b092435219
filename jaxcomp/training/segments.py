"""A run as a list of segments, each with one task, optimiser and calendar."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.errors import UserError, message_of, within
from jaxcomp.core.specs import Call, check, parse, suggest
from jaxcomp.core.trees import name_of
from jaxcomp.core.types import Array
from jaxcomp.parallel import Workers
from jaxcomp.runs import keys
from jaxcomp.runs.keys import KEYS
from jaxcomp.training.schedules import (
    Horizon,
    Schedule,
    learning_rate,
    read_duration,
    steps_in,
)
from jaxcomp.training.tasks import Batch, Task, Variables
from jaxcomp.training.tasks.named import MODEL


class Calendar(NamedTuple):
    """The epochs of steps that all take as many examples."""

    horizon: Horizon
    first: int = 0  # step, from 0
    epoch: int = 0  # epochs before it
    examples: int = 0  # likewise

    def before(self, unit: str) -> int:
        """The steps, epochs or examples before the first step."""
        counts = {"step": self.first, "epoch": self.epoch, "example": self.examples}
        return counts[unit]

    def as_if(self, step: int, unit: str = "epoch") -> int:
        """The number of a step, had all before it been steps like those here.

        Example:
          >>> Calendar(Horizon(steps_per_epoch=5, batch_size=64), 20, 2, 640).as_if(21)
          11
        """
        before = {
            "step": self.first,
            "epoch": self.epoch * self.horizon.steps_per_epoch,
            "example": -(-self.examples // self.horizon.batch_size),
        }
        return before[unit] + step - self.first

    def epochs(self, step: int) -> Fraction:
        """The epochs before a step; whole numbers are the ends of epochs."""
        return Fraction(self.as_if(step), self.horizon.steps_per_epoch)

    def then(self, first: int, horizon: Horizon) -> "Calendar":
        """The calendar from a step on, with which steps of other batches begin.

        Raises:
          UserError: no epoch ends before that step.
        """
        if horizon == self.horizon:
            return self
        epochs = self.epochs(first)
        if epochs.denominator > 1:
            raise UserError(
                "another batch_size begins with an epoch, and step "
                f"{first + 1} is {float(epochs):.4g} epochs into the run: write for "
                f"example '{round(epochs) or 1} epochs'"
            )
        examples = self.examples + (first - self.first) * self.horizon.batch_size
        return Calendar(horizon, first, int(epochs), examples)


class Segment(NamedTuple):
    """What holds from a step on."""

    first: int  # step, from 0
    settings: Mapping[str, Any]  # that change there
    config: Any  # of the run, with all that changed so far
    calendar: Calendar
    when: str = "0 epochs"  # as it is written
    task: Any = None  # from `with_tasks`; segments of the same sizes share one
    rate: Any = None  # of a step of the run, from `with_rates`

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"from step {self.first + 1} on: {shown}"


class RunSegments(NamedTuple):
    """The segments of a run, of which the first begins with it. Steps count from 0."""

    each: tuple[Segment, ...]

    @property
    def calendars(self) -> tuple[Calendar, ...]:
        """The different ones, in their order."""
        return tuple(dict.fromkeys(segment.calendar for segment in self.each))

    def number(self, step: int) -> int:
        """The number of the segment of a step, from 0."""
        return sum(segment.first <= max(step, 0) for segment in self.each) - 1

    def at(self, step: int) -> Segment:
        """The segment of a step."""
        return self.each[self.number(step)]

    def begins(self, step: int) -> bool:
        """Whether a segment but the first begins with a step."""
        return any(segment.first == step for segment in self.each[1:])

    def batch_at(self, step: int) -> int:
        """The examples of a step, of all workers together."""
        return self.at(step).calendar.horizon.batch_size

    def epochs(self, step: int) -> Fraction:
        """The epochs before a step; whole numbers are the ends of epochs."""
        return self.at(step).calendar.epochs(step)

    def epoch_at(self, step: int) -> int:
        """The epoch of a step, from 1."""
        return int(self.epochs(step)) + 1

    def examples(self, step: int) -> int:
        """The examples before a step."""
        calendar = self.at(step).calendar
        length = calendar.horizon.batch_size
        return calendar.examples + (step - calendar.first) * length

    def end_of(self, epoch: int) -> int:
        """The steps in so many epochs."""
        return self.steps_of(f"{epoch} epochs", may_be_zero=True)

    def steps_of(self, duration: str, *, may_be_zero: bool = False) -> int:
        """The steps in a duration, counted from the beginning of the run."""
        found = read_duration(duration, may_be_zero=may_be_zero)
        for calendar in reversed(self.calendars):
            left = found.amount - calendar.before(found.unit)
            if left > 0:
                rest = found._replace(amount=left)
                return calendar.first + steps_in(rest, calendar.horizon)
        return 0

    def steps_at(self, config: Any, key: str) -> int:
        """The steps of the duration at a key of a config."""
        with within(key):
            return self.steps_of(config[key])

    def every(self, config: Any, key: str) -> Callable[[int], bool]:
        """Make a function that says whether the interval at a key ends after a step.

        An interval is as long as it says in steps of any batch, and one of epochs ends
        with epochs. An empty one never ends.

        Args:
          config: of the run.
          key: of a duration.

        Returns:
          A function of the number of finished steps.
        """
        with within(key):
            found = read_duration(config[key])
            lengths = {c: steps_in(found, c.horizon) for c in self.calendars}

        def ends(done: int) -> bool:
            calendar = self.at(done - 1).calendar
            length = lengths[calendar]
            return length > 0 and calendar.as_if(done, found.unit) % length == 0

        return ends

    def epochs_every(self, config: Any, key: str) -> int:
        """The epochs of the interval at a key; refuses parts of an epoch."""
        each = [calendar.horizon for calendar in self.calendars]
        with within(key):
            found = read_duration(config[key])
            lengths = [Fraction(steps_in(found, h), h.steps_per_epoch) for h in each]
        whole = -(-lengths[0] // 1)
        if any(length != whole for length in lengths):
            shown = " and ".join(dict.fromkeys(f"{float(x):.3g}" for x in lengths))
            steps = " and ".join(dict.fromkeys(str(h.steps_per_epoch) for h in each))
            raise UserError(
                f"{key} counts in whole epochs, and {config[key]!r} is {shown} epochs "
                f"of {steps} steps: write for example '{whole} epochs'"
            )
        return whole

    def rate(self, step: Any) -> Array:
        """The learning rate of a step; a traced step will do."""
        if len(self.each) == 1:
            return self.each[0].rate(step)
        begun = [step >= segment.first for segment in self.each[1:]]
        number = jnp.sum(jnp.stack([jnp.asarray(x, jnp.int32) for x in begun]))
        return jnp.stack([segment.rate(step) for segment in self.each])[number]


_CHANGING = tuple(name for name, key in KEYS.items() if key.inside)
_EXAMPLE = "('30 epochs', {'learning_rate': 0.01})"


def make_segments(
    config: Any, examples: int, of_model: Sequence[Any] = ()
) -> RunSegments:
    """The segments of a config, without tasks and rates; one, if it has no `regime`.

    Args:
      config: its regime: pairs of a duration and the settings that change then. The
        word "model" stands for those of the model, and may be the whole regime.
      examples: of the training set.
      of_model: the regime of the model, () for none.

    Example:
      >>> from ml_collections import ConfigDict
      >>> config = ConfigDict({"batch_size": 32, "regime": ()})
      >>> run = make_segments(config, examples=320)
      >>> run.steps_of("2 epochs"), run.steps_of("100 examples"), run.epoch_at(10)
      (20, 4, 2)
    """

    def horizon_of(config: Any) -> Horizon:
        batch = config.batch_size
        return Horizon(keys.whole_batches(examples, batch), batch)

    each = [Segment(0, {}, config, Calendar(horizon_of(config)))]
    for when, settings in _pairs(config.regime, of_model):
        with within(f"regime {when!r}"):
            first = RunSegments(tuple(each)).steps_of(when, may_be_zero=True)
            changed = _changed(each[-1], first, settings)
            calendar = each[-1].calendar.then(first, horizon_of(changed))
            segment = Segment(first, dict(settings), changed, calendar, when)
        each = [segment] if first == 0 and len(each) == 1 else [*each, segment]
    return RunSegments(tuple(each))


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
        match pair:
            case [str(when), Mapping() as settings] if when.strip() and settings:
                continue
        raise UserError(
            f"a regime is made of pairs such as {_EXAMPLE}, and of the word "
            f"{MODEL!r} for those of the model, not of {pair!r}"
        )
    return pairs


def _changed(before: Segment, first: int, settings: Mapping[str, Any]) -> Any:
    """The config of a segment that begins with a step, from the one before it."""
    if before.settings and first <= before.first:
        message = f"begins at step {first + 1}, and the one before it at step"
        raise UserError(f"{message} {before.first + 1}: a later one is later")
    for key, value in settings.items():
        if key not in _CHANGING:
            hint = suggest(key, _CHANGING)
            raise UserError(f"{key} does not change during a run. {hint}")
        check(KEYS[key].kind, key, value)
    config = before.config.copy_and_resolve_references()
    config.update(settings)
    keys.check_keys(config)
    if "batch_size" in settings:
        keys.check_fit(config.workers, config.batch_size, config.accumulate)
    old, new = (_name(c.optimizer) for c in (before.config, config))
    if first and new == "one_bit_adam" and old != new:
        raise UserError(
            f"optimizer {config.optimizer!r} learns its variance in the first steps of "
            "a run: begin with it, or take 'adam'"
        )
    return config


def _name(optimizer: str) -> str:
    call = parse(optimizer)
    return call.name if isinstance(call, Call) else ""


def with_rates(
    run: RunSegments, *, total: int, warmup: int, workers: int, degree: int | None
) -> RunSegments:
    """The segments with their learning rates, as functions of the step of the run.

    Schedules and warm-up go by epochs: where the batch changes, they go on at the same
    epoch, in larger or smaller steps.

    Args:
      run: segments.
      total: steps of the run.
      warmup: steps of the ramp.
      workers: as in `learning_rate`.
      degree: likewise.
    """

    def rate_of(segment: Segment) -> Schedule:
        horizon, config = segment.calendar.horizon, segment.config

        def seen(step: int) -> int | float:
            """The epochs before a step, in steps of this segment."""
            steps = run.epochs(step) * horizon.steps_per_epoch
            return int(steps) if steps.denominator == 1 else float(steps)

        rate = learning_rate(
            config.learning_rate,
            config.schedule,
            horizon=horizon,
            total=seen(total),
            warmup=seen(warmup),
            warmup_from=config.warmup_from,
            scaling=config.lr_scaling,
            workers=workers,
            degree=degree,
        )
        shift = segment.calendar.as_if(0)
        return (lambda step: rate(jnp.asarray(step) + shift)) if shift else rate

    return RunSegments(tuple(s._replace(rate=rate_of(s)) for s in run.each))


_SIZES = ("batch_size", "image_size")


def with_tasks(
    run: RunSegments, task: Task, config: Any, workers: Workers
) -> RunSegments:
    """The segments with their tasks; those of the same sizes share one.

    Args:
      run: segments.
      task: that the config makes.
      config: of the run.
      workers: of the run.

    Raises:
      UserError: a batch or pictures do not suit the task or model; names the regime.
    """
    if config.image_size and task.resized is None:
        raise _of_one_size(task, "image_size")
    made: dict[tuple[int, ...], Task] = {}

    def task_of(segment: Segment) -> Task:
        sizes = tuple(segment.config[key] for key in _SIZES)
        if sizes not in made:
            found = task
            if sizes != tuple(config[key] for key in _SIZES):
                if task.resized is None:
                    raise _of_one_size(
                        task, next(k for k in _SIZES if k in segment.settings)
                    )
                found = task.resized(segment.config)
            made[sizes] = found
        found = made[sizes]
        _check_shares(found, segment.calendar.horizon, workers.size)
        if segment.config.image_size:
            _check_model(found, next(iter(made.values())), segment.config)
        return found

    each = []
    for segment in run.each:
        place = within(f"regime {segment.when!r}")
        with place if segment.settings else contextlib.nullcontext():
            each.append(segment._replace(task=task_of(segment)))
    return RunSegments(tuple(each))


def _of_one_size(task: Task, key: str) -> UserError:
    message = f"{key} does not change in a run on {task.data}"
    return UserError(f"{message}: its task makes batches of one size")


def _check_shares(task: Task, horizon: Horizon, workers: int) -> None:
    steps, batch = horizon
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


def batches_from(
    start: int, run: RunSegments, feed: Callable[[Task, int], Iterator[Batch]]
) -> Iterator[Batch]:
    """The batches of a run from a step on, without end.

    Args:
      start: the number of that step, from 0.
      run: its segments.
      feed: the batches of a task from a step on, had the run only steps like those.
    """
    now = run.at(start)
    others = [s.first for s in run.each if s.first > start and s.task is not now.task]
    batches = feed(now.task, now.calendar.as_if(start))
    if not others:
        yield from batches
        return
    yield from itertools.islice(batches, others[0] - start)
    del batches  # what it keeps on the devices goes before the next one comes
    yield from batches_from(others[0], run, feed)

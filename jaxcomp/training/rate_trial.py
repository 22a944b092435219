"""Which learning rates a config can take: its own steps, at a rate that grows."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Positive
from jaxcomp.training.checkpoints import read_start
from jaxcomp.training.feed import run_feed
from jaxcomp.training.plan import RunPlan, build, gather_workers, settled
from jaxcomp.training.programs import make_programs
from jaxcomp.training.running_metrics import step_figures
from jaxcomp.training.schedules import Horizon, Schedule

LIMIT = 4.0  # times the least loss: where a trial ends
LEAST_STEPS = 10
_WEIGHT = 0.9  # of what was before, in the smoothed loss


class Trial(NamedTuple):
    """The plan of a run whose rate grows; nothing of it is written."""

    plan: RunPlan
    rates: np.ndarray  # [steps] values of `learning_rate`
    scaling: float  # by which `lr_scaling` multiplies them
    init_from: str  # of the config


class Tried(NamedTuple):
    """A step of a trial."""

    step: int  # from 1
    rate: float
    loss: float  # mean over the workers; NaN where the step could not be applied
    smoothed: float


class Suggestion(NamedTuple):
    """What a trial says of `learning_rate`."""

    steepest: float  # where the smoothed loss falls the most
    tenth: float  # of the rate with the least smoothed loss
    least: float  # that rate


def growing(
    horizon: Horizon, total: int, first: Positive, last: Positive, steps: Count
) -> Schedule:
    """(first / last)^(1 - t / (T - 1)) at step t of T: from first / last to 1.

    Example:
      >>> rate = growing(Horizon(10, 32), 10, first=0.01, last=1.0, steps=3)
      >>> [round(float(rate(step)), 4) for step in range(3)]
      [0.01, 0.1, 1.0]
    """
    slope = math.log(last / first) / (steps - 1)
    return lambda step: jnp.exp(slope * (jnp.asarray(step, jnp.float32) - steps + 1))


def make_trial(config: Any, first: float, last: float, steps: int) -> Trial:
    """Build the steps of a config with rates from `first` to `last`.

    The steps are the first ones of the run in all but the rate: the schedule and the
    ramp of `warmup` are left out, and of a `regime` what holds in the beginning stays.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      first: value of `learning_rate` in the first step.
      last: in the last one.
      steps: at most; each multiplies the rate by the same factor.

    Raises:
      UserError: a value is wrong; the message says what is right.
    """
    if not 0 < first < last < math.inf:
        message = "rates grow from above 0 to a larger one"
        raise UserError(f"{message}, not from {first:g} to {last:g}")
    if steps < LEAST_STEPS:
        raise UserError(f"steps is at least {LEAST_STEPS}, not {steps}")
    workers = gather_workers(config)
    if config.regime:
        config = build(config, workers).segments.each[0].config
    schedule = f"{__name__}:growing(first={first!r}, last={last!r}, steps={steps})"
    config = config.copy_and_resolve_references()
    config.update(learning_rate=last, schedule=schedule, warmup="", regime=())
    plan = build(settled(config, workers), workers)
    scaling = plan.rate_on_host(steps - 1) / last
    return Trial(plan, np.geomspace(first, last, steps), scaling, config.init_from)


def try_rates(trial: Trial, say: Callable[[str], None]) -> Iterator[Tried]:
    """Take the steps of a trial, each when it is asked for.

    The last one is that of the last rate, or the first whose loss is not finite or,
    smoothed, more than `LIMIT` times the least so far.

    Args:
      trial: from `make_trial`.
      say: where compiling is announced.
    """
    plan = trial.plan
    start = read_start(trial.init_from, plan).variables if trial.init_from else None
    state = parallel.spread(plan.fresh(start=start), plan.workers)
    compiled = make_programs(plan, say)
    batches = run_feed(plan, 0)
    mean, least = 0.0, math.inf
    for number, rate in enumerate(trial.rates.tolist()):
        state, metrics = compiled(number, state)[0].step(state, *next(batches))
        figures = step_figures(parallel.to_host(metrics))
        loss = math.nan if figures["skipped"] else figures["loss"]
        mean = _WEIGHT * mean + (1 - _WEIGHT) * loss
        smoothed = mean / (1 - _WEIGHT ** (number + 1))
        yield Tried(number + 1, rate, loss, smoothed)
        least = min(least, smoothed)
        if not smoothed <= least + (LIMIT - 1) * abs(least):
            return


def suggested(tried: Sequence[Tried]) -> Suggestion | None:
    """The rates that a trial suggests; None where its loss did not fall.

    The first steps, over which the mean that smooths is not yet one of many, are only
    looked at through those that follow.

    Args:
      tried: all steps of a trial.

    Example:
      >>> losses = [2.0] * 10 + [2.0, 1.9, 1.5, 1.2, 1.1, 1.4, 9.0]
      >>> tried = [Tried(i, 2.0**i, x, x) for i, x in enumerate(losses)]
      >>> suggested(tried)
      Suggestion(steepest=4096.0, tenth=1638.4, least=16384.0)
    """
    finite = [one for one in tried if math.isfinite(one.smoothed)]
    smoothed = np.array([one.smoothed for one in finite])
    rates = np.array([one.rate for one in finite])
    begin = min(round(1 / (1 - _WEIGHT)), len(finite) // 4)
    if len(finite) - begin < 2:
        return None
    lowest = begin + int(np.argmin(smoothed[begin:]))
    if lowest == begin:
        return None
    slopes = np.gradient(smoothed, np.log(rates))
    steepest = begin + int(np.argmin(slopes[begin : lowest + 1]))
    least = float(rates[lowest])
    return Suggestion(float(rates[steepest]), least / 10, least)

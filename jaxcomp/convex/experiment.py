"""Build a convex experiment from a config. Every name is looked up here."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxcomp.convex import (
    Average,
    Facts,
    Optimum,
    Rate,
    make_average,
    make_rate,
    problems,
    solve,
)
from jaxcomp.convex.problems import Problem
from jaxcomp.core import specs
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Call, Count, SpecError, error_at, parse
from jaxcomp.core.types import Exchange, Mixer
from jaxcomp.data import Partition, make_partition
from jaxcomp.parallel import AXIS
from jaxcomp.runs.folder import SHARED, check_fit, check_values, whole_batches
from jaxcomp.training.plan import make_graph
from jaxcomp.training.schedules import Horizon, steps_at
from jaxcomp.transforms.distributed import distributed, mixing
from jaxcomp.transforms.make import compressor_for, make_exchange, make_mixer
from jaxcomp.wire import collective_bytes, exact_bytes, link_bytes, traced_collectives

_FILLED = {
    "average": "mean",
    "compressor": "top_k(keep=0.01)",
    "eval_every": "0.5 epochs",
    "learning_rate": "decay(a=2, tau=500)",
    "partition": "random",
    "problem": "digits(pairs=True)",
    "train_for": "40 epochs",
}
_OTHERS = ("checkpoint_every", "exchange", "memory", "mixer", "topology")
_KINDS = {
    **dict.fromkeys(_OTHERS, str),
    **SHARED,
    "regulariser": float | None,
    "seeds": Count,
}
_SETS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"


class ConvexTraffic(NamedTuple):
    """Bytes that each worker would send, for each step of a cycle that repeats.

    Example:
      >>> traffic = Traffic(wire=(0, 10), left=(0, 30), exact=60)
      >>> traffic.of(3)  # every other step sends
      (10, 30, 180)
    """

    wire: tuple[int, ...]  # the message
    left: tuple[float, ...]  # of the worker that sends the most, as in rings
    exact: float  # would leave it in any step with `exact`

    def of(self, steps: int) -> tuple[int, float, float]:
        """The bytes of the first steps of a run, in the same order."""
        sent, left = (_total(cycle, steps) for cycle in (self.wire, self.left))
        return sent, left, steps * self.exact


class Experiment(NamedTuple):
    """What is built from a config once, and shared by all seeds of a run."""

    problem: Problem
    optimum: Optimum
    workers: int
    method: Exchange | Mixer
    link: optax.GradientTransformationExtraArgs
    rate: Rate
    average: Average
    horizon: Horizon
    total_steps: int
    eval_steps: int
    save_steps: int
    traffic: ConvexTraffic


def build(config: Any) -> Experiment:
    """Build an experiment; every name and value of the config is checked first."""
    check_values(config, _KINDS, _FILLED)
    check_fit(config.workers, config.batch_size)
    problem = _problem(config)
    workers, batch = config.workers, config.batch_size
    horizon = Horizon(whole_batches(problem.examples, batch), batch)
    partition_of(config, problem.labels, config.seed)
    facts = Facts(problem.regulariser, horizon.steps_per_epoch)
    rate = make_rate(config.learning_rate, facts)
    average = make_average(config.average)
    method = _method(config)
    total = steps_at(config, "train_for", horizon)
    every = steps_at(config, "eval_every", horizon)
    return Experiment(
        problem=problem,
        optimum=solve(problem),
        workers=workers,
        method=method,
        link=mixing(method) if isinstance(method, Mixer) else distributed(method),
        rate=rate,
        average=average,
        horizon=horizon,
        total_steps=total,
        eval_steps=min(every, total),
        save_steps=steps_at(config, "checkpoint_every", horizon) or total,
        traffic=_traffic(method, problem.dimension, workers),
    )


def partition_of(config: Any, labels: np.ndarray, seed: int) -> Partition:
    """Which examples belong to which worker in the repetition with this seed."""
    return make_partition(config.partition, labels, workers=config.workers, seed=seed)


def _problem(config: Any) -> Problem:
    """The problem that a config names, with the regulariser that the config may set."""
    call = parse(config.problem)
    if not isinstance(call, Call):
        raise SpecError(f"a convex problem is one name, not {config.problem!r}")
    if config.regulariser is not None:
        if "regulariser" in call.kwargs:
            raise error_at(call, "regulariser stands here and in the config: set one")
        arguments = {**call.kwargs, "regulariser": config.regulariser}
        call = call._replace(kwargs=arguments)
    try:
        return specs.build(call, problems.REGISTRY, "convex problem")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        hint = f" Sets to fetch: {_SETS}" if missing else ""
        message = f"{config.problem}: {error.strerror or error}.{hint}"
        raise UserError(message) from error


def _method(config: Any) -> Exchange | Mixer:
    """The exchange or mixer of a config."""
    graph = make_graph(config)
    compressor = compressor_for(config.exchange, config.compressor)
    if not config.mixer and not config.exchange:
        raise UserError("set mixer, such as 'choco(gamma=0.05)', or exchange: 'exact'")
    if not config.mixer:
        return make_exchange(config.exchange, compressor, config.memory)
    return make_mixer(
        config.mixer,
        graph,
        compressor=compressor,
        exchange=config.exchange or None,
        memory=config.memory,
    )


def _traffic(method: Exchange | Mixer, dimension: int, workers: int) -> ConvexTraffic:
    """The bytes of one worker, for each step of a cycle."""
    x = jax.ShapeDtypeStruct((dimension,), np.float32)

    def measure(phase: int) -> tuple[int, float]:
        if isinstance(method, Mixer):
            link = mixing(method, seed=0, phase=phase)
        else:
            link = distributed(method, seed=0)
        state = jax.eval_shape(link.init, x)
        found = traced_collectives(link.update, x, state, x, axis=AXIS, workers=workers)
        return sum(collective_bytes(found).values()), link_bytes(found)

    schedule = method.schedule if isinstance(method, Mixer) else (0,)
    measured = {phase: measure(phase) for phase in sorted(set(schedule))}
    sent, left = zip(*(measured[phase] for phase in schedule), strict=True)
    return ConvexTraffic(sent, left, exact_bytes(x, workers))


def _total(cycle: tuple[Any, ...], steps: int) -> Any:
    whole, rest = divmod(steps, len(cycle))
    return whole * sum(cycle) + sum(cycle[:rest])

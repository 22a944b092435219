"""From a config to the pieces of a convex run. Every name is looked up here."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxcomp import local, specs
from jaxcomp.base import Exchange, Mixer
from jaxcomp.convex import (
    Average,
    Facts,
    Optimum,
    Problem,
    Rate,
    make_average,
    make_rate,
    solve,
    testbeds,
)
from jaxcomp.data.shards import PARTITIONS, Partition
from jaxcomp.errors import UserError
from jaxcomp.make import compressor_for, make_exchange, make_mixer
from jaxcomp.parallel import AXIS
from jaxcomp.runs.checks import SHARED, check_fit, check_values, whole_batches
from jaxcomp.specs import Call, Count, SpecError, error_at, parse
from jaxcomp.training.method import make_graph
from jaxcomp.training.schedules import Horizon, steps_at
from jaxcomp.transform import distributed, mixing
from jaxcomp.wire import collective_bytes, traced_collectives

__all__ = ["Setting", "Traffic", "build", "partition_of"]

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


class Traffic(NamedTuple):
    """Bytes that each worker would hand to the network, by step of a cycle.

    Example:
        >>> traffic = Traffic(wire=(0, 10), plain=(0, 40))  # every other step sends
        >>> traffic.sent(3), traffic.dense(4)
        (10, 80)
    """

    wire: tuple[int, ...]
    plain: tuple[int, ...]  # of the same method without compression

    def sent(self, steps: int) -> int:
        """Bytes of the first steps of a run."""
        return _total(self.wire, steps)

    def dense(self, steps: int) -> int:
        """Bytes of the same steps without compression."""
        return _total(self.plain, steps)


class Setting(NamedTuple):
    """Everything that the seeds of a run share."""

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
    traffic: Traffic


def build(config: Any) -> Setting:
    """Look up and check everything that a config names, before any work is done."""
    check_values(config, _KINDS, _FILLED)
    check_fit(config.workers, config.batch_size)
    problem = _problem(config)
    workers, batch = config.workers, config.batch_size
    horizon = Horizon(whole_batches(problem.examples, batch), batch)
    partition_of(config, problem.labels, config.seed)
    facts = Facts(problem.regulariser, horizon.steps_per_epoch)
    rate = make_rate(config.learning_rate, facts)
    average = make_average(config.average)
    method, plain = _method(config), _method(config, plain=True)
    total = steps_at(config, "train_for", horizon)
    every = steps_at(config, "eval_every", horizon)
    return Setting(
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
        traffic=Traffic(
            _bytes(method, problem.dimension, workers),
            _bytes(plain, problem.dimension, workers),
        ),
    )


def partition_of(config: Any, labels: np.ndarray, seed: int) -> Partition:
    """Who owns which examples in a repetition."""
    given = labels, config.workers, seed
    return specs.build(config.partition, PARTITIONS, "partition", *given)


def _problem(config: Any) -> Problem:
    """The problem of the config, with the regulariser of the config if it has one."""
    call = parse(config.problem)
    if not isinstance(call, Call):
        raise SpecError(f"a convex problem is one name, not {config.problem!r}")
    if config.regulariser is not None:
        if "regulariser" in call.kwargs:
            raise error_at(call, "regulariser stands here and in the config: set one")
        arguments = {**call.kwargs, "regulariser": config.regulariser}
        call = call._replace(kwargs=arguments)
    try:
        return specs.build(call, testbeds.REGISTRY, "convex problem")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        hint = f" Sets to fetch: {_SETS}" if missing else ""
        message = f"{config.problem}: {error.strerror or error}.{hint}"
        raise UserError(message) from error


def _method(config: Any, plain: bool = False) -> Exchange | Mixer:
    """What crosses the workers, or the same without compression."""
    graph = make_graph(config)
    compressor = compressor_for(config.exchange, config.compressor)
    if not config.mixer and not config.exchange:
        raise UserError("set mixer, such as 'choco(gamma=0.05)', or exchange: 'exact'")
    if not config.mixer:
        return make_exchange(config.exchange, compressor, config.memory, dense=plain)
    call = parse(config.mixer)
    is_local = isinstance(call, Call) and call.name in local.REGISTRY
    return make_mixer(
        config.mixer,
        graph,
        compressor="none" if plain and not is_local else compressor,
        exchange=config.exchange or None,
        memory=config.memory,
        dense=plain and is_local,
    )


def _bytes(method: Exchange | Mixer, dimension: int, workers: int) -> tuple[int, ...]:
    """What one worker hands to collectives at each step of the method's cycle."""
    x = jax.ShapeDtypeStruct((dimension,), np.float32)

    def measure(program: int) -> int:
        if isinstance(method, Mixer):
            link = mixing(method, seed=0, program=program)
        else:
            link = distributed(method, seed=0)
        state = jax.eval_shape(link.init, x)
        found = traced_collectives(link.update, x, state, x, axis=AXIS, workers=workers)
        return sum(collective_bytes(found).values())

    schedule = method.schedule if isinstance(method, Mixer) else (0,)
    measured = {program: measure(program) for program in sorted(set(schedule))}
    return tuple(measured[program] for program in schedule)


def _total(cycle: tuple[int, ...], steps: int) -> int:
    whole, rest = divmod(steps, len(cycle))
    return whole * sum(cycle) + sum(cycle[:rest])

"""From a config to the setup of a run. Every name in the config is looked up here."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from jaxcomp import loggers, parallel, tasks
from jaxcomp.base import Exchange, Mixer, Tree
from jaxcomp.errors import UserError
from jaxcomp.make import compressor_for
from jaxcomp.overlap import compiler_options
from jaxcomp.runs.checks import check_values
from jaxcomp.tasks import Task, Variables
from jaxcomp.tasks.brought import MODEL
from jaxcomp.training import loss_scale, optimizers, schedules
from jaxcomp.training.batch import batch_of, check_batches, check_one_batch
from jaxcomp.training.calendar import Calendar
from jaxcomp.training.decay import check_decay
from jaxcomp.training.due import Due, timetable
from jaxcomp.training.keys import FILLED, KINDS
from jaxcomp.training.method import (
    check_layers,
    check_warmup,
    cut_for,
    make_graph,
    make_method,
)
from jaxcomp.training.nodes import check_nodes, node_count
from jaxcomp.training.phases import tasks_of
from jaxcomp.training.profiling import window_of
from jaxcomp.training.regimes import Regimes, make_regimes, rates_of
from jaxcomp.training.stages import Stage, Stages, make_stages
from jaxcomp.training.state import TrainState, init_state, own
from jaxcomp.training.step import make_train_step
from jaxcomp.trees import name_of

__all__ = ["Setup", "build", "gather_workers", "parameter_count", "settled"]


class Setup(NamedTuple):
    """Everything that a run needs, as `build` made it from a config."""

    tasks: tuple[Task, ...]  # one for each regime
    workers: parallel.Workers
    stages: Stages
    method: Exchange | Mixer  # of the last stage
    loss_scale: loss_scale.LossScale
    regimes: Regimes
    rate: schedules.Schedule  # of a step
    calendar: Calendar
    eval_batch: int  # examples of an evaluation's step, of all workers together
    total_steps: int
    due_at: Callable[[int], Due]  # after so many steps
    # Of one worker, for the number of a regime, by default that of the first step;
    # `start` as in `init_state`.
    fresh: Callable[..., TrainState]
    chain: Callable[[int], optax.GradientTransformationExtraArgs]  # of a regime
    step: Callable[[Stage], Callable[..., Any]]  # of one worker
    # Of the optax chain of a stage; a second argument is the `wrap` of `make_method`.
    links: Callable[..., list[optax.GradientTransformation]]
    leaf_names: list[str]  # of the parameters
    figures: tuple[str, ...]  # further columns of steps.csv
    options: dict[str, Any]  # of the compiler, for every step
    loggers: list[loggers.Named]  # beside the tables
    profiled: range  # steps, from 1

    @property
    def task(self) -> Task:
        """The task of the first regime; all have the same data, model and measure."""
        return self.tasks[0]

    def example(self, regime: int) -> tuple[Any, ...]:
        """A worker's share of a batch of a regime."""
        batch = self.regimes.each[regime].config.batch_size
        share = batch // self.workers.size
        return tuple(array[:share] for array in self.tasks[regime].train)

    def rate_on_host(self, step: int) -> float:
        """The learning rate of a step, computed without the devices of the workers."""
        try:
            host = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
            return float(self.rate(step))
        with jax.default_device(host):
            return float(self.rate(step))


def gather_workers(config: Any) -> parallel.Workers:
    """Check a config's values, then set up its devices and join other processes.

    Nothing is started if a value is wrong.
    """
    check_values(config, KINDS, FILLED)
    check_one_batch(config)
    if config.workers:
        check_batches(config, config.workers)
    elif config.mapper == "vmap":
        message = "workers=0 means one on each device, and mapper 'vmap' simulates any "
        raise UserError(f"{message}number of them on one: say how many")
    workers = parallel.setup(
        config.workers or None,
        config.mapper,
        platform=config.platform,
        deterministic=config.deterministic,
        per_device=config.workers_per_device,
    )
    check_batches(config, workers.size)
    return workers


def settled(config: Any, workers: parallel.Workers) -> Any:
    """A config with the numbers of its workers and of the examples of a step."""
    if config.workers and not config.batch_per_worker:
        return config
    config = config.copy_and_resolve_references()
    batch = batch_of(config, workers.size)
    config.update(workers=workers.size, batch_size=batch, batch_per_worker=0)
    return config


def build(config: Any, workers: parallel.Workers) -> Setup:
    """Look up and check everything that a config names, before any work is done.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workers: from `gather_workers`.
    """
    config = settled(config, workers)
    check_layers(config)
    check_nodes(config)
    task = tasks.make(config.get("task", "classification"), config, workers)
    brought = tasks.regime_of(config) if MODEL in config.regime else ()
    regimes = make_regimes(config, len(task.train[0]), brought)
    calendar = regimes.calendar
    of_regimes = tasks_of(task, regimes, config, workers)
    task = of_regimes[0]
    share = regimes.each[0].config.batch_size // workers.size
    total = calendar.steps_at(config, "train_for")
    warmup = calendar.steps_at(config, "warmup")
    if warmup > total:
        raise UserError(
            f"a warmup of {config.warmup!r} is longer than the run of "
            f"{config.train_for!r}: shorten it, or write --config.warmup= for none"
        )
    for regime in regimes.each:
        if regime.first >= total and (regime.when, regime.settings) not in brought:
            begins = f"begins after step {regime.first}, and the run of"
            message = f"{begins} {config.train_for!r} ends with step {total}"
            raise UserError(f"regime {regime.when!r} {message}: leave it out")
    graph = make_graph(config)
    rates = rates_of(
        regimes,
        total=total,
        warmup=warmup,
        workers=node_count(config),
        degree=graph.degree if graph else None,
    )

    scale = loss_scale.make(config.loss_scale, config.compute_dtype)
    cut = cut_for(config, task, workers)

    def method_at(stage: Stage, *wrap: Any) -> Exchange | Mixer:
        return make_method(config, stage, graph, workers.axis, cut, *wrap)

    compressor = compressor_for(config.exchange, config.compressor)
    sent = Stage(compressor, dense=False)
    usual = method_at(sent)
    twice = sorted({*usual.figures} & {*task.figures})
    if twice:
        message = f"the task and {usual.name!r} both report {twice}: rename the task's"
        raise UserError(message)
    mixer = usual if isinstance(usual, Mixer) else None
    stages = make_stages(config, sent, calendar, mixer, regimes.at)

    def links(stage: Stage, *wrap: Any) -> list[optax.GradientTransformation]:
        of_regime = regimes.each[stage.regime].config
        setting = optimizers.Setting(
            rates[stage.regime],
            of_regime.weight_decay,
            stages.dense_steps,
            decay=of_regime.decay,
            decay_at=of_regime.decay_at,
        )
        return optimizers.make_links(of_regime, stage, setting, method_at(stage, *wrap))

    @functools.cache
    def chain(stage: Stage) -> optax.GradientTransformationExtraArgs:
        return optimizers.chained(links(stage))

    last = stages.at(total - 1)

    def chain_of(regime: int) -> optax.GradientTransformationExtraArgs:
        """All stages of a regime have the same state."""
        return chain(last._replace(regime=regime))

    def fresh(regime: int = 0, start: Variables | None = None) -> TrainState:
        return init_state(
            task,
            chain_of(regime),
            seed=config.seed,
            examples=share,
            own_models=isinstance(usual, Mixer),
            ema=config.ema,
            scale=scale,
            start=start,
        )

    params = jax.eval_shape(fresh).params
    for number, regime in enumerate(regimes.each):
        check_decay(regime.config, own(params))
        chain_of(number)
    check_warmup(
        config, [method_at(stage) for stage in stages.warmup], usual, own(params)
    )
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return Setup(
        tasks=of_regimes,
        workers=workers,
        stages=stages,
        method=method_at(last),
        loss_scale=scale,
        regimes=regimes,
        rate=regimes.rate_of(rates),
        calendar=calendar,
        eval_batch=config.eval_batch_size or config.batch_size,
        total_steps=total,
        due_at=timetable(config, calendar, total, regimes.begins),
        fresh=fresh,
        chain=chain_of,
        step=lambda stage: make_train_step(
            of_regimes[stage.regime],
            chain(stage),
            seed=config.seed,
            axis=workers.axis,
            accumulate=config.accumulate,
            cut=cut,
            ema=config.ema,
            scale=scale,
        ),
        links=links,
        leaf_names=[name_of(path).removeprefix("value/") for path, _ in paths],
        figures=tuple(sorted((*usual.figures, *task.figures, *scale.figures))),
        options=compiler_options(_platform(workers), cut.parts),
        loggers=loggers.make(config.loggers),
        profiled=window_of(config.profile, total),
    )


def parameter_count(tree: Tree) -> int:
    """The number of elements of all arrays of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _platform(workers: parallel.Workers) -> str:
    """Of the devices between which messages travel; "" for simulated workers."""
    return "" if workers.mesh is None else workers.mesh.devices.flat[0].platform

"""From a config to what a run needs: every name looked up, every value checked."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax

from jaxcomp import parallel
from jaxcomp.compressors import make as make_compressor
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Call, parse
from jaxcomp.core.trees import name_of
from jaxcomp.core.types import Axis, Exchange, Mixer, Tree
from jaxcomp.exchanges.overlap import (
    WHOLE,
    Cut,
    compiler_options,
    overlapped,
    ready_order,
)
from jaxcomp.memory import make as make_memory
from jaxcomp.mixers import gossip
from jaxcomp.parallel import Workers
from jaxcomp.runs import loggers
from jaxcomp.runs.folder import check_keys
from jaxcomp.scope import leaves_of
from jaxcomp.training import optimizers, schedules, state, tasks
from jaxcomp.training.calendar import Calendar, Stage, Stages, make_stages
from jaxcomp.training.keys import (
    batch_of,
    check_batches,
    check_one_batch,
)
from jaxcomp.training.optimizers import check_decay, check_nodes, node_count, nodes_of
from jaxcomp.training.profiling import window_of
from jaxcomp.training.segments import Regimes, make_regimes, rates_of, tasks_of
from jaxcomp.training.state import TrainState, init_state, unmark
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks import Task, Variables
from jaxcomp.training.tasks.classification import make as make_statistics
from jaxcomp.training.tasks.named import MODEL
from jaxcomp.transforms.make import compressor_for, make_exchange, make_mixer, plan_for


def make_graph(config: Any) -> gossip.Topology | None:
    """The graph that a config's gossip runs on; None where there is none."""
    if not config.topology:
        return None
    if not config.mixer:
        message = (
            f"topology {config.topology!r} is of no use to an exchange of gradients: "
            "set mixer, for example to 'choco(gamma=0.5)', or topology to ''"
        )
        raise UserError(message)
    return gossip.topology(config.topology, node_count(config))


def cut_for(config: Any, task: Task, workers: Workers) -> Cut:
    """How the gradient of a run is cut into messages: as its task computes it."""
    if config.overlap == 1:
        return Cut()
    if config.mixer:
        raise UserError(
            f"overlap={config.overlap} cuts gradients into messages, and "
            f"{config.mixer!r} sends models, which are there before the step: set "
            "overlap to 1. The mixer 'choco_overlapped' exchanges models beside the "
            "gradient's computation"
        )
    examples = config.batch_size // config.workers // config.accumulate
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, stats = jax.eval_shape(task.init, key)
    carry = jax.eval_shape(lambda: task.carry(examples))
    batch = tuple(
        jax.ShapeDtypeStruct((examples, *x.shape[1:]), x.dtype) for x in task.train
    )
    gradient = jax.grad(lambda *args: task.loss(*args)[0])
    given = params, stats, carry, batch, key
    order = ready_order(gradient, *given, axes=workers.lengths)
    return Cut(config.overlap, order)


def make_method(
    config: Any,
    stage: Stage,
    graph: gossip.Topology | None,
    axis: Axis,
    cut: Cut = WHOLE,
    wrap: Callable[[Exchange], Exchange] = lambda exchange: exchange,
) -> Exchange | Mixer:
    """The method of a config at a stage of its run.

    Args:
      config: names the method.
      stage: what is sent.
      graph: from `make_graph`.
      axis: the mapped axis.
      cut: from `cut_for`.
      wrap: what is put around an exchange of gradients, inside of its memories.
    """
    # An exchange with a way of its own switches compressors off, however chosen.
    policy = config.policy if stage.compressor else ()
    usual = {"scope": config.scope, "policy": policy, "axis": axis}
    statistics = make_statistics(config.batch_norm, axis)
    if not config.mixer:
        given = config.exchange, stage.compressor, "none"
        inner = make_exchange(*given, dense=stage.dense, **usual)
        exchange = make_memory(config.memory, wrap(inner))
        return overlapped(exchange, cut.parts, cut.order)
    if statistics.axis is not None:
        message = (
            f"batch_norm {config.batch_norm!r} sends statistics at every step, to "
            f"everybody, which {config.mixer!r} is meant to avoid: set it to 'local'"
        )
        raise UserError(message)
    call = parse(config.mixer)
    if isinstance(call, Call) and call.name in gossip.REGISTRY:
        _check_of_no_use(config)
    else:
        usual |= {"exchange": config.exchange, "memory": config.memory}
        usual |= {"dense": stage.dense}
    usual |= {"axis": nodes_of(config, axis)}
    mixer = make_mixer(config.mixer, graph, compressor=stage.compressor, **usual)
    return mixer._replace(axis=axis)  # what links look at: that of all devices


def check_layers(config: Any) -> None:
    """Refuse `layers_every` where no exchange is given the whole gradient."""
    if not config.layers_every:
        return
    if config.mixer:
        raise UserError(
            "layers_every shows what an exchange loses of each layer's gradient, and "
            f"{config.mixer!r} sends models: set layers_every to ''"
        )
    if config.overlap != 1:
        raise UserError(
            "layers_every looks at one message with all layers: set overlap to 1, not "
            f"{config.overlap}, or layers_every to ''"
        )


def check_warmup(
    config: Any,
    warmup: Sequence[Exchange | Mixer],
    usual: Exchange | Mixer,
    params: Tree,
) -> None:
    """Refuse a warm-up of `keep` that changes nothing, or more than what is sent.

    Args:
      config: of the run.
      warmup: the methods of its first epochs.
      usual: the method of the rest.
      params: of a worker, or their shapes and dtypes.
    """
    if not warmup:
        return
    compressor = make_compressor(config.compressor)
    plan = plan_for(compressor, config.scope, config.policy)
    reason = ""
    if all(g.compressor is not compressor for g in plan.groups(leaves_of(params))):
        reason = f"no tensor is compressed by {config.compressor!r}, whose keep it is"
    of_usual = jax.eval_shape(usual.init, params)
    if any(jax.eval_shape(method.init, params) != of_usual for method in warmup):
        reason = f"the state of {usual.name!r} is as large as a message"
    if reason:
        raise UserError(
            f"keep_warmup={config.keep_warmup!r} cannot be: {reason}. Set it to ''"
        )


def _check_of_no_use(config: Any) -> None:
    """Refuse settings of an exchange, where workers send to neighbours."""
    unused = [
        key
        for key in ("exchange", "memory", "dense_for", "flush_every")
        if config[key] not in ("", "none")
    ]
    if unused:
        settings = " and ".join(f"{key}={config[key]!r}" for key in unused)
        empty = " ".join(f"--config.{key}=" for key in unused)
        message = (
            f"{config.mixer!r} sends to neighbours: there is no use for {settings}. "
            f"Set them to nothing: {empty}"
        )
        raise UserError(message)


class Due(NamedTuple):
    """What a run has to do after a step."""

    epoch: int  # from 1
    ends_epoch: bool  # or the run
    looks: bool  # at the figures, and whether a signal came
    saves: bool
    keeps: bool  # that checkpoint for ever
    evaluates: bool  # the one model, or the mean of the workers' own
    evaluates_own: bool  # each worker's model, where they have their own
    views_layers: bool  # what each layer loses


def timetable(
    config: Any,
    calendar: Calendar,
    total: int,
    changes: Callable[[int], bool] = lambda step: False,
) -> Callable[[int], Due]:
    """Make a function from the number of finished steps to what is due then.

    Args:
      config: of the run.
      calendar: of the run.
      total: steps of the run.
      changes: whether something changes after so many steps: then the run looks.
    """
    evaluate = calendar.epochs_every(config, "eval_every")
    own = calendar.epochs_every(config, "eval_workers_every")
    layers = calendar.epochs_every(config, "layers_every")
    ends_interval = calendar.every(config, "checkpoint_every")
    ends_kept = calendar.every(config, "keep_every")

    def due_at(done: int) -> Due:
        epoch, last = calendar.epoch_at(done - 1), done == total
        ends_epoch = last or done == calendar.end_of(epoch)
        keeps = ends_kept(done)
        saves = keeps or last or ends_interval(done)
        return Due(
            epoch=epoch,
            ends_epoch=ends_epoch,
            looks=ends_epoch
            or saves
            or changes(done)
            or is_due(done, config.log_every),
            saves=saves,
            keeps=keeps,
            evaluates=ends_epoch and (last or is_due(epoch, evaluate)),
            evaluates_own=ends_epoch and (last or is_due(epoch, own)),
            views_layers=ends_epoch and bool(layers) and (last or epoch % layers == 0),
        )

    return due_at


def is_due(done: int, interval: int) -> bool:
    """Whether an interval ends here; an interval of 0 never ends.

    Example:
      >>> is_due(20, 10), is_due(25, 10), is_due(25, 0)
      (True, False, False)
    """
    return interval > 0 and done % interval == 0


class Setup(NamedTuple):
    """Everything that a run needs, as `build` made it from a config."""

    tasks: tuple[Task, ...]  # one for each regime
    workers: parallel.Workers
    stages: Stages
    method: Exchange | Mixer  # of the last stage
    loss_scale: state.LossScale
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
    check_keys(config)
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

    scale = state.make(config.loss_scale, config.compute_dtype)
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
        setting = optimizers.OptimizerSetting(
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
        check_decay(regime.config, unmark(params))
        chain_of(number)
    check_warmup(
        config, [method_at(stage) for stage in stages.warmup], usual, unmark(params)
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

"""From a config to the plan of a run: every name looked up, every value checked."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax

from jaxcomp import parallel, scope
from jaxcomp.compressors import make as make_compressor
from jaxcomp.convex.averages import Average
from jaxcomp.core.errors import UserError, within
from jaxcomp.core.specs import Call, parse
from jaxcomp.core.types import Axis, Exchange, Mixer, Tree
from jaxcomp.exchanges import overlap
from jaxcomp.mixers import gossip
from jaxcomp.parallel import Workers
from jaxcomp.parallel.agreement import on_all_processes
from jaxcomp.parallel.cluster import check_same
from jaxcomp.runs import keys, loggers
from jaxcomp.scope import leaves_of
from jaxcomp.training import optimizers, segments, state, tasks
from jaxcomp.training.segments import RunSegments
from jaxcomp.training.stages import Stage, Stages, make_stages
from jaxcomp.training.state import TrainState, unmark
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks import Measure, Task, Variables
from jaxcomp.training.tasks.classification import make as make_statistics
from jaxcomp.training.tasks.named import MODEL
from jaxcomp.transforms.make import compressor_for, make_exchange
from jaxcomp.transforms.make_mixer import make_mixer


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
    return gossip.topology(config.topology, optimizers.node_count(config))


def cut_for(config: Any, task: Task, workers: Workers) -> overlap.Cut:
    """How the gradient of a run is cut into messages: as its task computes it."""
    if config.overlap == 1:
        return overlap.Cut()
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
    order = overlap.ready_order(gradient, *given, axes=workers.lengths)
    return overlap.Cut(config.overlap, order)


def make_method(
    config: Any,
    stage: Stage,
    graph: gossip.Topology | None,
    axis: Axis,
    cut: overlap.Cut = overlap.WHOLE,
) -> Exchange | Mixer:
    """The method of a config at a stage of its run.

    Args:
      config: names the method.
      stage: what is sent.
      graph: from `make_graph`.
      axis: the mapped axis.
      cut: from `cut_for`.
    """
    # An exchange with a way of its own switches compressors off, however chosen.
    policy = config.policy if stage.compressor else ()
    usual = {"scope": config.scope, "policy": policy, "axis": axis}
    usual |= {"compressor": stage.compressor}
    whole = {"exchange": config.exchange, "memory": config.memory, "dense": stage.dense}
    if not config.mixer:
        return make_exchange(**whole, **usual, overlap=cut.parts, order=cut.order)
    if make_statistics(config.batch_norm, axis).axis is not None:
        message = (
            f"batch_norm {config.batch_norm!r} sends statistics at every step, to "
            f"everybody, which {config.mixer!r} is meant to avoid: set it to 'local'"
        )
        raise UserError(message)
    call = parse(config.mixer)
    if isinstance(call, Call) and call.name in gossip.REGISTRY:
        _check_of_no_use(config)
    else:
        usual |= whole
    usual |= {"axis": optimizers.nodes_of(config, axis)}
    mixer = make_mixer(config.mixer, graph, **usual)
    return mixer._replace(axis=axis)  # what links look at: that of all devices


def check_layers(config: Any) -> None:
    """Refuse `layers_every` where no exchange is given the whole gradient."""
    if config.layers_every and (config.mixer or config.overlap != 1):
        raise UserError(
            "layers_every looks at one message with the gradients of all layers: set "
            f"overlap to 1, not {config.overlap}, and mixer to '', not "
            f"{config.mixer!r}; or set layers_every to ''"
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
    plan = scope.make_plan(config.scope, compressor, config.policy)
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


class Triggers(NamedTuple):
    """What a run has to do after a step."""

    epoch: int  # from 1
    ends_epoch: bool  # or the run
    looks: bool  # at the figures, and whether a signal came
    saves: bool
    keeps: bool  # that checkpoint for ever
    evaluates: bool  # the one model, or the mean of the workers' own
    evaluates_own: bool  # each worker's model, where they have their own
    views_layers: bool  # what each layer loses


def make_triggers(
    config: Any, run: RunSegments, total: int
) -> Callable[[int], Triggers]:
    """Make a function from the number of finished steps to what is due then.

    Args:
      config: of the run.
      run: its segments; a run looks where one begins.
      total: steps of the run.
    """
    evaluate = run.epochs_every(config, "eval_every")
    own = run.epochs_every(config, "eval_workers_every")
    layers = run.epochs_every(config, "layers_every")
    ends_interval = run.every(config, "checkpoint_every")
    ends_kept = run.every(config, "keep_every")

    def triggers(done: int) -> Triggers:
        epoch, last = run.epoch_at(done - 1), done == total
        ends_epoch = last or done == run.end_of(epoch)
        keeps = ends_kept(done)
        saves = keeps or last or ends_interval(done)
        return Triggers(
            epoch=epoch,
            ends_epoch=ends_epoch,
            looks=ends_epoch
            or saves
            or run.begins(done)
            or is_due(done, config.log_every),
            saves=saves,
            keeps=keeps,
            evaluates=ends_epoch and (last or is_due(epoch, evaluate)),
            evaluates_own=ends_epoch and (last or is_due(epoch, own)),
            views_layers=ends_epoch and bool(layers) and (last or epoch % layers == 0),
        )

    return triggers


def is_due(done: int, interval: int) -> bool:
    """Whether an interval ends here; an interval of 0 never ends.

    Example:
      >>> is_due(20, 10), is_due(25, 10), is_due(25, 0)
      (True, False, False)
    """
    return interval > 0 and done % interval == 0


class RunPlan(NamedTuple):
    """What a run will do, as `build` read it from a config; nothing is compiled."""

    config: Any  # with the numbers of its workers and of the examples of a step
    workers: Workers
    segments: RunSegments  # with their tasks and rates
    total_steps: int
    stages: Stages
    triggers: Callable[[int], Triggers]  # after so many steps
    graph: gossip.Topology | None
    cut: overlap.Cut
    loss_scale: state.LossScale
    figures: tuple[str, ...]  # further columns of steps.csv
    loggers: list[loggers.Named]  # beside the tables
    params: Tree = None  # shapes and dtypes of the parameters of a worker

    @property
    def task(self) -> Task:
        """The task of the first segment; all have the same data, model and measure."""
        return self.segments.each[0].task

    @property
    def measure(self) -> Measure:
        """Of the task."""
        return self.task.measure

    @property
    def average(self) -> Average | None:
        """Of the weights: that of the task, or `config.ema`."""
        if self.task.average and self.config.ema:
            message = f"ema={self.config.ema}: the task has an average of its own"
            raise UserError(message)
        return self.task.average or state.exponential(self.config.ema)

    @property
    def eval_batch(self) -> int:
        """Examples of an evaluation's step, of all workers together."""
        return self.config.eval_batch_size or self.config.batch_size

    @property
    def as_written(self) -> dict[str, Any]:
        """The config as config.json has it: plain values."""
        return json.loads(self.config.to_json())

    @property
    def epochs(self) -> int:
        """The number of the last epoch."""
        return self.segments.epoch_at(self.total_steps - 1)

    @property
    def method(self) -> Exchange | Mixer:
        """Of the last stage."""
        return self.method_of(self.stages.at(self.total_steps - 1))

    @property
    def leaf_names(self) -> list[str]:
        """Of the parameters."""
        return [leaf.path for leaf in leaves_of(self.params)]

    def method_of(self, stage: Stage) -> Exchange | Mixer:
        """The method of a stage."""
        return make_method(self.config, stage, self.graph, self.workers.axis, self.cut)

    def links(
        self, stage: Stage, method: Exchange | Mixer | None = None
    ) -> list[optax.GradientTransformation]:
        """The links of the optax chain of a stage, with its method or another one."""
        segment = self.segments.each[stage.segment]
        config = segment.config
        setting = optimizers.OptimizerSetting(
            segment.rate,
            config.weight_decay,
            self.stages.dense_steps,
            decay=config.decay,
            decay_at=config.decay_at,
        )
        method = method or self.method_of(stage)
        return optimizers.make_links(config, stage, setting, method)

    def chain(self, stage: Stage) -> optax.GradientTransformationExtraArgs:
        """The optax chain of a stage."""
        return optimizers.chained(self.links(stage))

    def chain_of(self, segment: int) -> optax.GradientTransformationExtraArgs:
        """A chain of a segment, by its number: all its stages have the same state."""
        last = self.stages.at(self.total_steps - 1)
        return self.chain(last._replace(segment=segment))

    def fresh(self, segment: int = 0, start: Variables | None = None) -> TrainState:
        """The state of one worker before the first step; `start` as in `init_state`."""
        return state.init_state(
            self.task,
            self.chain_of(segment),
            seed=self.config.seed,
            examples=self.segments.batch_at(0) // self.workers.size,
            own_models=bool(self.config.mixer),
            ema=self.average,
            scale=self.loss_scale,
            start=start,
        )

    def step(self, stage: Stage) -> Callable[..., Any]:
        """The step of one worker at a stage."""
        return make_train_step(
            self.segments.each[stage.segment].task,
            self.chain(stage),
            seed=self.config.seed,
            axis=self.workers.axis,
            accumulate=self.config.accumulate,
            cut=self.cut,
            ema=self.average,
            scale=self.loss_scale,
        )

    def example(self, segment: int) -> tuple[Any, ...]:
        """A worker's share of a batch of a segment."""
        batch = self.segments.each[segment].config.batch_size
        share = batch // self.workers.size
        return tuple(array[:share] for array in self.segments.each[segment].task.train)

    def rate_on_host(self, step: int) -> float:
        """The learning rate of a step, computed without the devices of the workers."""
        try:
            host = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
            return float(self.segments.rate(step))
        with jax.default_device(host):
            return float(self.segments.rate(step))


def make_plan(config: Any) -> RunPlan:
    """The plan of a run, for which this process joins the others; all have to agree.

    Args:
      config: ConfigDict with the keys of configs/default.py.
    """
    workers = gather_workers(config)
    config = settled(config, workers)
    same = {k: v for k, v in config.items() if k != "data_dir"}
    check_same({"config": json.dumps(same, indent=1, sort_keys=True)})
    return on_all_processes(lambda: build(config, workers))


def gather_workers(config: Any) -> Workers:
    """Check a config's values, then set up its devices and join other processes.

    Nothing is started if a value is wrong.
    """
    keys.check_keys(config)
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


def check_batches(config: Any, workers: int) -> None:
    """Refuse batches of training or evaluation that the workers do not divide."""
    batch = batch_of(config, workers)
    keys.check_fit(workers, batch, config.accumulate)
    with within("eval_batch_size"):
        keys.check_fit(workers, config.eval_batch_size or batch)


def batch_of(config: Any, workers: int) -> int:
    """Examples of a step, of all workers together.

    Example:
      >>> from ml_collections import ConfigDict
      >>> batch_of(ConfigDict({"batch_size": 0, "batch_per_worker": 16}), workers=4)
      64
    """
    return config.batch_per_worker * workers or config.batch_size


def settled(config: Any, workers: Workers) -> Any:
    """A config with the numbers of its workers and of the examples of a step."""
    if config.workers and not config.batch_per_worker:
        return config
    config = config.copy_and_resolve_references()
    batch = batch_of(config, workers.size)
    config.update(workers=workers.size, batch_size=batch, batch_per_worker=0)
    return config


def build(config: Any, workers: Workers) -> RunPlan:
    """Look up and check everything that a config names, before any work is done.

    Args:
      config: ConfigDict with the keys of configs/default.py.
      workers: from `gather_workers`.
    """
    config = settled(config, workers)
    check_layers(config)
    optimizers.check_nodes(config)
    task = tasks.make(config.get("task", "classification"), config, workers)
    of_model = tasks.regime_of(config) if MODEL in config.regime else ()
    run = segments.make_segments(config, len(task.train[0]), of_model)
    run = segments.with_tasks(run, task, config, workers)
    total = run.steps_at(config, "train_for")
    warmup = run.steps_at(config, "warmup")
    _check_length(config, run, total, warmup, of_model)
    graph = make_graph(config)
    run = segments.with_rates(
        run,
        total=total,
        warmup=warmup,
        workers=optimizers.node_count(config),
        degree=graph.degree if graph else None,
    )
    task = run.each[0].task
    scale = state.make(config.loss_scale, config.compute_dtype)
    cut = cut_for(config, task, workers)
    compressor = compressor_for(config.exchange, config.compressor)
    sent = Stage(compressor, dense=False)
    usual = make_method(config, sent, graph, workers.axis, cut)
    twice = sorted({*usual.figures} & {*task.figures})
    if twice:
        message = f"the task and {usual.name!r} both report {twice}: rename the task's"
        raise UserError(message)
    mixer = usual if isinstance(usual, Mixer) else None
    plan = RunPlan(
        config=config,
        workers=workers,
        segments=run,
        total_steps=total,
        stages=make_stages(config, sent, run, mixer),
        triggers=make_triggers(config, run, total),
        graph=graph,
        cut=cut,
        loss_scale=scale,
        figures=tuple(sorted((*usual.figures, *task.figures, *scale.figures))),
        loggers=loggers.make(config.loggers),
    )
    plan = plan._replace(params=unmark(jax.eval_shape(plan.fresh).params))
    for number, segment in enumerate(run.each):
        optimizers.check_decay(segment.config, plan.params)
        plan.chain_of(number)
    warm = [plan.method_of(stage) for stage in plan.stages.warmup]
    check_warmup(config, warm, usual, plan.params)
    return plan


def _check_length(
    config: Any, run: RunSegments, total: int, warmup: int, of_model: Sequence[Any]
) -> None:
    """Refuse a ramp, and segments of the config's own, beyond the end of the run."""
    if warmup > total:
        raise UserError(
            f"a warmup of {config.warmup!r} is longer than the run of "
            f"{config.train_for!r}: shorten it, or write --config.warmup= for none"
        )
    for segment in run.each:
        if segment.first >= total and (segment.when, segment.settings) not in of_model:
            begins = f"begins after step {segment.first}, and the run of"
            message = f"{begins} {config.train_for!r} ends with step {total}"
            raise UserError(f"regime {segment.when!r} {message}: leave it out")


def parameter_count(tree: Tree) -> int:
    """The number of elements of all arrays of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))

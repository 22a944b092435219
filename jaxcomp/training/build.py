"""From a config to the pieces of a run. Every name in the config is looked up here."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import data, models, parallel
from jaxcomp.base import Array, Exchange, Mixer, Tree
from jaxcomp.make import compressor_for
from jaxcomp.runs.checks import check_sizes, whole_batches
from jaxcomp.specs import Call, SpecError, parse, suggest
from jaxcomp.training import optimizers, schedules
from jaxcomp.training.feed import Deal
from jaxcomp.training.method import make_graph, make_method
from jaxcomp.training.schedules import Horizon, steps_of
from jaxcomp.training.stages import Stage, Stages, make_stages
from jaxcomp.training.state import TrainState, init_state
from jaxcomp.training.step import make_train_step
from jaxcomp.trees import name_of

__all__ = ["Pieces", "build", "parameter_count"]


class Pieces(NamedTuple):
    """Everything a run is made of."""

    dataset: data.Dataset
    deal: Deal  # the batches of an epoch
    workers: parallel.Workers
    model: Any
    stages: Stages
    method: Exchange | Mixer  # of the last stage
    rate: schedules.Schedule
    augment: Callable[[Array, Array], Array]
    normalize: Callable[[Array], Array]
    horizon: Horizon
    total_steps: int
    fresh: Callable[[], TrainState]  # of one worker
    step: Callable[[Stage], Callable[..., Any]]  # of one worker
    leaf_names: list[str]  # of the parameters


def build(config: Any) -> Pieces:
    """Look up and check everything that a config names, before any work is done."""
    _check_choice("batch_norm", config.batch_norm, ("local", "sync"))
    _check_choice("nonfinite", config.nonfinite, ("stop", "skip"))
    batch = config.batch_size
    check_sizes(config.workers, batch, config.seed, config.accumulate)
    workers = parallel.setup(config.workers, config.mapper)
    dataset = _dataset(config)
    count = len(dataset.train_labels)
    horizon = Horizon(whole_batches(count, batch), batch)
    deal = _deal(config, dataset, workers.size)
    deal(0)
    total = steps_of(config.train_for, horizon)
    graph = make_graph(config)
    rate = schedules.learning_rate(
        config.learning_rate,
        config.schedule,
        horizon=horizon,
        total=total,
        warmup=steps_of(config.warmup, horizon),
        scaling=config.lr_scaling,
        workers=workers.size,
        degree=graph.degree if graph else None,
    )

    def method_at(stage: Stage) -> Exchange | Mixer:
        return make_method(config, stage, graph, workers.axis)

    compressor = compressor_for(config.exchange, config.compressor)
    sent = Stage(compressor, dense=False)
    usual = method_at(sent)
    cycle = usual.schedule if isinstance(usual, Mixer) else (0,)
    stages = make_stages(config, sent, horizon, cycle)
    setting = optimizers.Setting(rate, config.weight_decay, stages.dense_steps)

    @functools.cache
    def chain(stage: Stage) -> Any:
        return optimizers.make_chain(config, stage, setting, method_at(stage))

    last = stages.at(total - 1)
    tx = chain(last)
    model = _model(config, dataset, workers.axis)
    colours = {"mean": dataset.mean, "std": dataset.std}
    augment = functools.partial(
        data.augment, **colours, pad=config.pad, flip=config.flip
    )
    shape = (config.batch_size // workers.size, *dataset.train_images.shape[1:])
    fresh = functools.partial(
        init_state,
        model,
        tx,
        jax.ShapeDtypeStruct(shape, jnp.float32),
        seed=config.seed,
        local_stats=config.batch_norm == "local",
        own_models=isinstance(usual, Mixer),
    )
    params = jax.eval_shape(fresh).params
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return Pieces(
        dataset=dataset,
        deal=deal,
        workers=workers,
        model=model,
        stages=stages,
        method=method_at(last),
        rate=rate,
        augment=augment,
        normalize=functools.partial(data.normalize, **colours),
        horizon=horizon,
        total_steps=total,
        fresh=fresh,
        step=lambda stage: make_train_step(
            model,
            chain(stage),
            augment,
            seed=config.seed,
            axis=workers.axis,
            accumulate=config.accumulate,
        ),
        leaf_names=[name_of(path).removeprefix("value/") for path, _ in paths],
    )


def parameter_count(tree: Tree) -> int:
    """Number of elements of all arrays of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _dataset(config: Any) -> data.Dataset:
    call = _call(config.dataset, "dataset")
    return data.load(call.name, data_dir=config.data_dir or None, **call.kwargs)


def _deal(config: Any, dataset: data.Dataset, workers: int) -> Deal:
    """Who sees what in an epoch, [steps, workers, examples of a step]."""
    labels, batch = dataset.train_labels, config.batch_size
    call = _call(config.partition, "partition")
    if call.name == "dealt" and not call.kwargs:

        def dealt(epoch: int) -> np.ndarray:
            order = data.epoch_order(len(labels), seed=config.seed, epoch=epoch)
            return data.batches(order, global_batch=batch, workers=workers)

        return dealt
    if call.name not in data.PARTITIONS:
        hint = suggest(call.name, ["dealt", *data.PARTITIONS])
        raise SpecError(f"unknown partition {call.name!r}. {hint}")
    divided = data.make_partition(
        call.name, labels, workers=workers, seed=config.seed, **call.kwargs
    )
    return lambda epoch: data.worker_batches(divided, epoch=epoch, global_batch=batch)


def _model(config: Any, dataset: data.Dataset, axis: str) -> Any:
    call = _call(config.model, "model")
    sync = axis if config.batch_norm == "sync" else None
    return models.make(call.name, dataset.num_classes, bn_axis=sync, **call.kwargs)


def _call(spec: str, kind: str) -> Call:
    call = parse(spec)
    if not isinstance(call, Call) or call.args:
        raise SpecError(f"a {kind} is a name with named arguments, not {spec!r}")
    return call


def _check_choice(key: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"unknown {key} {value!r}. {suggest(value, valid)}")

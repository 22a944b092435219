"""What a config says of a step: its gradient, its method, and its arithmetic."""

import statistics
import time
from typing import Any

import jax

from jaxcomp import parallel
from jaxcomp.make import compressor_for
from jaxcomp.training.build import build, gather_workers

__all__ = ["compute_seconds", "method_of", "params_of"]

_WARM_UP, _TIMED = 3, 7  # steps


def params_of(config: Any) -> Any:
    """The specs of the parameters that a config trains."""
    return jax.eval_shape(_alone(config).fresh).params


def method_of(config: Any) -> tuple[str, ...]:
    """The method of a config as one line; none where it mixes models."""
    if config.mixer or config.policy or config.exchange == "exact":
        return ()
    parts = [config.memory, config.exchange, config.scope]
    compressor = compressor_for(config.exchange, config.compressor)
    last = [compressor] if compressor else [parts.pop(1)]
    return (": ".join([*parts, *last]),)


def compute_seconds(config: Any) -> float:
    """Measure the training step of one worker that exchanges nothing.

    That is its forward and backward pass and the update of the optimiser, with its
    share of the batch. The median of several steps.
    """
    setup = _alone(config)
    stage = setup.stages.at(setup.total_steps - 1)
    state = parallel.spread(setup.fresh(stage.regime), setup.workers)
    axes = parallel.axes(state)
    batch = setup.example(stage.regime)
    step = parallel.map_step(
        setup.step(stage),
        setup.workers,
        in_axes=(axes, *(0 for _ in batch)),
        out_axes=(axes, 0),
    )
    given = parallel.place(tuple(x[None] for x in batch), setup.workers, 0)
    taken: list[float] = []
    for _ in range(_WARM_UP + _TIMED):
        began = time.perf_counter()
        state, metrics = step(state, *given)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[_WARM_UP:])


def _alone(config: Any) -> Any:
    """The setup of one worker with its share of the batch, who exchanges nothing."""
    mine = config.copy_and_resolve_references()
    with mine.unlocked():
        share = config.batch_per_worker or config.batch_size // max(1, config.workers)
        mine.update(batch_size=max(1, share), batch_per_worker=0)
        mine.update(workers=1, mixer="", topology="", exchange="exact", memory="none")
        mine.update(compressor="none", policy=(), keep_warmup="", dense_for="")
        mine.update(flush_every="", overlap=1, mapper="shard_map", workers_per_device=1)
        mine.update(devices_per_node=1, regime=_of_one_worker(config))
    return build(mine, gather_workers(mine))


def _of_one_worker(config: Any) -> Any:
    """The regime of a config, in which each batch is the share of one worker."""
    if isinstance(config.regime, str):
        return config.regime

    def shared(entry: Any) -> Any:
        if isinstance(entry, str) or "batch_size" not in entry[1]:
            return entry
        when, settings = entry
        share = max(1, settings["batch_size"] // max(1, config.workers))
        return when, {**settings, "batch_size": share}

    return tuple(shared(entry) for entry in config.regime)

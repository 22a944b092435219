"""What a run is at a step, and nothing else: this is what a checkpoint holds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.base import Array, Clock, PerWorker, Tree, is_per_worker

__all__ = ["TrainState", "init_state", "like", "own"]


class TrainState(NamedTuple):
    """State of one step. Data order and random keys follow from `step` and the seed."""

    clock: Clock
    params: Tree  # `PerWorker` where each worker has a model of its own
    batch_stats: Tree  # `PerWorker` where statistics are local
    opt_state: Any  # holds memories and compressor state too; `PerWorker` like params

    @property
    def step(self) -> Array:
        """[] int32, steps done."""
        return self.clock.step


def init_state(
    model: Any,
    tx: optax.GradientTransformation,
    images: Any,
    *,
    seed: int,
    local_stats: bool,
    own_models: bool = False,
) -> TrainState:
    """Fresh state of one worker, the same for every worker.

    Args:
      model: flax module.
      tx: the optax chain.
      images: an example batch or its spec, float32.
      seed: of the parameters.
      local_stats: whether each worker keeps its own BatchNorm statistics.
      own_models: whether each worker keeps its own model and optimiser.
    """
    key = jax.random.fold_in(jax.random.key(seed), 0)
    images = jnp.zeros(images.shape, images.dtype)
    variables = jax.jit(lambda k: model.init(k, images, train=False))(key)
    params = variables["params"]
    stats = variables.get("batch_stats", {})
    opt_state = tx.init(params)
    return TrainState(
        clock=Clock(jnp.int32(0)),
        params=PerWorker(params) if own_models else params,
        batch_stats=PerWorker(stats) if local_stats else stats,
        opt_state=PerWorker(opt_state) if own_models else opt_state,
    )


def own(part: Tree) -> Tree:
    """A part of the state as a worker uses it, without the mark."""
    return part.value if is_per_worker(part) else part


def like(old: Tree, new: Tree) -> Tree:
    """The new part, marked like the old one."""
    return PerWorker(new) if is_per_worker(old) else new

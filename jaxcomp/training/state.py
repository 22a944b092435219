"""The state of a run at a step, all of which a checkpoint holds."""

from typing import Any, NamedTuple

import jax
import optax

from jaxcomp.base import Array, PerWorker, Tree, is_per_worker
from jaxcomp.errors import UserError
from jaxcomp.link_state import find_state
from jaxcomp.scope import leaves_of
from jaxcomp.tasks import Task, Variables
from jaxcomp.training.ema import first_average
from jaxcomp.training.loss_scale import UNSCALED, LossScale
from jaxcomp.trees import wide_spec

__all__ = ["TrainState", "init_state", "initial_variables", "like", "own"]


class TrainState(NamedTuple):
    """State of one step. Data order and random keys follow from `step` and the seed."""

    params: Tree  # `PerWorker` where each worker has a model of its own
    stats: Tree  # running statistics; `PerWorker` where they are local
    carry: Tree  # what the next batch is given; each worker's own
    opt_state: Any  # holds memories and compressor state too; `PerWorker` like params
    ema: Tree = ()  # moving average of the params, marked like them; () without
    loss_scale: Tree = ()  # `PerWorker` like params

    @property
    def step(self) -> Array:
        """Int32, steps done: the count of the link where workers talk.

        Of the shape [] within a step; outside, [workers] where each has its own model.
        """
        return find_state(self.opt_state).step


def init_state(
    task: Task,
    tx: optax.GradientTransformation,
    *,
    seed: int,
    examples: int,
    own_models: bool = False,
    ema: float = 0.0,
    scale: LossScale = UNSCALED,
    start: Variables | None = None,
) -> TrainState:
    """Fresh state of one worker, the same for every worker.

    Args:
      task: gives the model.
      tx: the optax chain.
      seed: of the parameters.
      examples: of a worker's batch.
      own_models: whether each worker keeps its own model, optimiser and loss scale.
      ema: decay of the moving average of the parameters; 0 for none.
      scale: of the loss.
      start: parameters and statistics, instead of those that follow from the seed.
    """
    params, stats = start or initial_variables(task, seed)
    opt_state, average = tx.init(params), first_average(params, ema)
    return TrainState(
        params=PerWorker(params) if own_models else params,
        stats=stats if task.shared_stats else PerWorker(stats),
        carry=PerWorker(task.carry(examples)),
        opt_state=PerWorker(opt_state) if own_models else opt_state,
        ema=PerWorker(average) if own_models and ema else average,
        loss_scale=PerWorker(scale.init()) if own_models else scale.init(),
    )


def initial_variables(task: Task, seed: int) -> Variables:
    """The parameters and statistics with which a run of this seed begins.

    Raises:
      UserError: a parameter is narrower than float32.
    """
    variables = task.init(jax.random.fold_in(jax.random.key(seed), 0))
    for leaf in leaves_of(variables.params):
        if wide_spec(leaf.spec) != leaf.spec:
            raise UserError(
                f"the parameter {leaf.path!r} is {leaf.spec.dtype}, in which small "
                "updates, averages and loss scales get lost: make it float32, in flax "
                "by param_dtype, and let compute_dtype say in what the model computes"
            )
    return variables


def own(part: Tree) -> Tree:
    """A part of the state without its `PerWorker` mark."""
    return part.value if is_per_worker(part) else part


def like(old: Tree, new: Tree) -> Tree:
    """The new part of a state, marked `PerWorker` if the old one was."""
    return PerWorker(new) if is_per_worker(old) else new

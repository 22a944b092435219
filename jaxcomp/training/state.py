"""The state of a run: params, EMA, loss scale, and marks of what differs by worker."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxcomp.convex.averages import Average
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Positive, Range, build, publish
from jaxcomp.core.trees import cast_like, name_of, wide_spec, widen
from jaxcomp.core.types import Array, Clock, PerWorker, Tree, is_clock, is_per_worker
from jaxcomp.scope import leaves_of
from jaxcomp.training.tasks import Task, Variables
from jaxcomp.transforms.distributed import DistributedState, find_state

Decay = Range(least=0, below=1)


def exponential(decay: float) -> Average | None:
    """d average + (1 - d) x, with d = min(decay, (1 + step) / (10 + step)).

    The first averages would else be little more than the parameters at the start.

    Args:
      decay: of the average; 0 for none.

    Example:
      >>> average = exponential(0.5)
      >>> average(jnp.zeros(1), jnp.ones(1), jnp.int32(100))
      Array([0.5], dtype=float32)
      >>> average(jnp.zeros(1), jnp.ones(1), jnp.int32(0))
      Array([0.9], dtype=float32)
    """

    def moved(average: Array, x: Array, step: ArrayLike) -> Array:
        count = jnp.asarray(step).astype(jnp.float32)
        kept = jnp.minimum(decay, (1 + count) / (10 + count)).astype(average.dtype)
        return kept * average + (1 - kept) * x

    return moved if decay else None


def moved(average: Tree, params: Tree, rule: Average | None, step: Array) -> Tree:
    """The average after a step; `params` are those after it."""
    if rule is None:
        return average
    return jax.tree.map(lambda old, new: rule(old, new, step), average, params)


LEAST, MOST = 1.0, 2.0**24  # of a scale that moves


class LossScale(NamedTuple):
    """How large a scale is, and what becomes of it after a step."""

    init: Callable[[], Tree]  # its state before the first step
    factor: Callable[[Tree], Array | None]  # state -> [] float32; None: nothing is done
    # (state, whether the step was applied) -> state after it
    after: Callable[[Tree, Array], Tree]
    # (state, whether a step with a finite loss was left out) -> what it tells of it
    report: Callable[[Tree, Array], dict[str, Array]] = lambda state, lost: {}
    figures: tuple[str, ...] = ()  # the names of what is told


class ScaleState(NamedTuple):
    """State of `dynamic`."""

    scale: Array  # [] float32
    steps: Array  # [] int32, applied since the scale has changed


def static(scale: Positive = 1024.0) -> LossScale:
    """The same scale in all steps; an overflow is a step that is not finite.

    Args:
      scale: a power of two, so that no digit changes.
    """
    return LossScale(
        init=tuple,
        factor=lambda state: jnp.float32(scale),
        after=lambda state, applied: state,
    )


def dynamic(
    start: Annotated[float, Range(least=LEAST, most=MOST)] = 65536.0,
    every: Count = 2000,
) -> LossScale:
    """The largest scale that does not overflow, found by trial.

    A step that is not applied halves the scale, to 1 at least. After `every` applied
    steps in a row it doubles, to 2^24 at most.

    Args:
      start: the first scale.
      every: applied steps until a larger scale is tried.

    References:
      Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, 2018.
    """

    def after(state: ScaleState, applied: Array) -> ScaleState:
        grows = state.steps + 1 >= every
        larger = jnp.minimum(2 * state.scale, MOST)
        smaller = jnp.maximum(state.scale / 2, LEAST)
        kept = jnp.where(grows, larger, state.scale)
        steps = jnp.where(grows | ~applied, 0, state.steps + 1)
        return ScaleState(jnp.where(applied, kept, smaller), steps)

    def report(state: ScaleState, lost: Array) -> dict[str, Array]:
        # At the least scale it is no overflow that a smaller one would mend.
        return {"loss_scale": state.scale, "overflowed": lost & (state.scale > LEAST)}

    return LossScale(
        init=lambda: ScaleState(jnp.float32(start), jnp.int32(0)),
        factor=lambda state: state.scale,
        after=after,
        report=report,
        figures=("loss_scale", "overflowed"),
    )


REGISTRY: dict[str, Callable[..., LossScale]] = {"dynamic": dynamic, "static": static}
publish(loss_scale=REGISTRY)

UNSCALED = static(1.0)._replace(factor=lambda state: None)


def make(spec: str, compute_dtype: str) -> LossScale:
    """The loss scale of a config.

    Args:
      spec: such as "dynamic(start=65536)"; "" for none.
      compute_dtype: of the model; float16 needs a scale.

    Example:
      >>> float(make("static(scale=128)", "float16").factor(()))
      128.0
      >>> make("", "float16")
      Traceback (most recent call last):
      jaxcomp.UserError: compute_dtype 'float16' turns gradients below 6e-8 \
into zeros: set loss_scale to 'dynamic', or to 'static(scale=1)' to try it all the same
    """
    if spec:
        return build(spec, REGISTRY, "loss_scale")
    if compute_dtype == "float16":
        raise UserError(
            "compute_dtype 'float16' turns gradients below 6e-8 into zeros: set "
            "loss_scale to 'dynamic', or to 'static(scale=1)' to try it all the same"
        )
    return UNSCALED


def value_and_grad(
    function: Callable[..., tuple[Array, Any]], factor: Array | None
) -> Callable[..., tuple[tuple[Array, Any], Tree]]:
    """`jax.value_and_grad` of a loss with `has_aux`, by a scaled backward pass.

    Args:
      function: (parameters, ...) -> (loss, anything else).
      factor: [] scale of the backward pass; None for an ordinary one.

    Example:
      >>> step = value_and_grad(lambda x: (3 * x, "more"), jnp.float32(8))
      >>> (loss, aux), gradient = step(jnp.float32(2))
      >>> float(loss), aux, float(gradient)
      (6.0, 'more', 3.0)
    """
    if factor is None:
        return jax.value_and_grad(function, has_aux=True)

    def scaled(*args: Any) -> tuple[Array, tuple[Array, Any]]:
        loss, aux = function(*args)
        return loss * factor.astype(loss.dtype), (loss, aux)

    def call(*args: Any) -> tuple[tuple[Array, Any], Tree]:
        differentiated = jax.value_and_grad(scaled, has_aux=True)
        (_, result), gradient = differentiated(*args)
        # In float32, as float16 has no 65536.
        wide = jax.tree.map(lambda g: g / factor.astype(g.dtype), widen(gradient))
        return result, cast_like(wide, gradient)

    return call


class TrainState(NamedTuple):
    """State of one step. Data order and random keys follow from `step` and the seed."""

    params: Tree  # `PerWorker` where each worker has a model of its own
    stats: Tree  # running statistics; `PerWorker` where they are local
    carry: Tree  # what the next batch is given; each worker's own
    opt_state: Any  # holds memories and compressor state too; `PerWorker` like params
    ema: Tree = ()  # an average of the params, marked like them; () without
    loss_scale: Tree = ()  # `PerWorker` like params

    @property
    def step(self) -> Array:
        """Int32, steps done: the count of the link with the exchange.

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
    ema: Average | None = None,
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
      ema: rule of the average of the parameters; None for none.
      scale: of the loss.
      start: parameters and statistics, instead of those that follow from the seed.
    """
    params, stats = start or initial_variables(task, seed)
    opt_state, average = tx.init(params), jax.tree.map(jnp.copy, params) if ema else ()
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


def unmark(part: Tree) -> Tree:
    """A part of the state without its `PerWorker` mark."""
    return part.value if is_per_worker(part) else part


def mark_like(old: Tree, new: Tree) -> Tree:
    """The new part of a state, marked `PerWorker` if the old one was."""
    return PerWorker(new) if is_per_worker(old) else new


def carried(old: tuple[Any, ...], fresh: tuple[Any, ...]) -> tuple[Any, ...]:
    """The state of a new chain, with what the old one knows.

    The exchanging link keeps all of its state, and clocks show its step. Of the
    other links, arrays go on where name, shape and dtype agree, such as the moments of
    `adam` in `adamw`. The rest is fresh.

    Args:
      old: state of the old chain.
      fresh: of the new one, as `init` made it.
    """
    exchanged = find_state(old)
    known: dict[str, Any] = {
        _name(path): leaf
        for state in old
        if state is not exchanged
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }

    def of(path: tuple[Any, ...], leaf: Any) -> Any:
        if is_clock(leaf):
            return Clock(jnp.copy(exchanged.step))
        before = known.get(_name(path), leaf)
        is_alike = (before.shape, before.dtype) == (leaf.shape, leaf.dtype)
        return before if is_alike else leaf

    return tuple(
        exchanged
        if isinstance(state, DistributedState)
        else jax.tree_util.tree_map_with_path(of, state, is_leaf=is_clock)
        for state in fresh
    )


def _name(path: tuple[Any, ...]) -> str:
    """The name of an array in the state of a link, wherever the link stands."""
    is_place = [isinstance(key, jax.tree_util.SequenceKey) for key in path]
    return name_of(path[[*is_place, False].index(False) :])

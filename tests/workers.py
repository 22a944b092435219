"""Run a per-worker function on many workers, under any mapper."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import models, parallel
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import PerWorker, is_per_worker

MAPPERS = parallel.MAPPERS


def gradients(
    workers: int, seed: int = 0, names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A tree with a leading worker axis: odd shapes, a scalar, heavy tails.

    Of all tensors, or of those that are named: programs take long to compile.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jnp.ndarray:
        values = rng.standard_t(3, size=(workers, *shape))
        return jnp.asarray(values, jnp.float32)

    tree = {"kernel": draw(7, 13), "bias": draw(13), "scale": draw(), "deep": draw(300)}
    return {name: tree[name] for name in names or tree}


def abstract(tree: Any) -> Any:
    """Shapes, dtypes and shardings of placed arrays, for restoring a checkpoint."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
    )


class Step(NamedTuple):
    """What one mapped step gave, as NumPy; `own` and `state` have a worker axis."""

    shared: Any
    own: Any
    state: Any


def run(
    step: Callable[..., Any],
    state: Any,
    inputs: list[Any],
    *,
    mapper: str,
    workers: int,
    per_device: int = 1,
) -> list[Step]:
    """Apply `step(state, x) -> (shared, own, state)` to one input after the other.

    Args:
      step: per-worker function; `shared` must be equal on all workers.
      state: fresh state of one worker.
      inputs: a tree with a leading worker axis for each step.
      mapper: how the step is mapped.
      workers: their number.
      per_device: how many of them share a device.
    """
    crew = parallel.setup(workers, mapper, per_device=per_device)
    state = parallel.spread(state, crew)
    axes, structure = jax.tree.flatten(parallel.axes(state), is_leaf=_is_none)
    mapped = _mapped(step, crew, tuple(axes), structure)
    results = []
    for x in inputs:
        shared, own, state = mapped(state, parallel.place(x, crew, 0))
        results.append(Step(*parallel.to_host((shared, own, state))))
    return results


@functools.cache
def _mapped(
    step: Callable[..., Any], crew: parallel.Workers, axes: tuple[Any, ...], state: Any
) -> Any:
    """The mapped step; one and the same for the same step, so that it compiles once."""
    of_state = jax.tree.unflatten(state, axes)
    return parallel.map_step(
        step, crew, in_axes=(of_state, 0), out_axes=(None, 0, of_state)
    )


def _is_none(x: Any) -> bool:
    return x is None


def compiled(
    step: Callable[..., Any], state: Any, x: Any, *, workers: int, mapper: str = "pmap"
) -> Any:
    """The program of a step on devices; nothing runs and nothing is allocated.

    What is read of it does not depend on how well its machine code is optimised.

    Args:
      step: as in `run`.
      state: fresh state of one worker, or its spec.
      x: the input of one worker, or its spec.
      workers: their number.
      mapper: "pmap" or "shard_map".
    """
    crew = parallel.setup(workers, mapper)
    axes = parallel.axes(state)
    mapped = parallel.map_step(step, crew, in_axes=(axes, 0), out_axes=(None, 0, axes))

    def spread(node: Any) -> Any:
        return stacked(node, workers) if is_per_worker(node) else spec_of(node)

    specs = jax.tree.map(spread, state, is_leaf=is_per_worker)
    lowered = mapped.lower(specs, stacked(x, workers))
    return lowered.compile({"xla_backend_optimization_level": 0})


def stacked(tree: Any, workers: int) -> Any:
    """The spec of a tree with a leading worker axis."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((workers, *s.shape), s.dtype), tree
    )


@functools.cache
def resnet20() -> Any:
    """The specs of its parameters: 269,722 in 65 tensors."""
    model = models.make("resnet20", num_classes=10)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(
        lambda x: model.init(jax.random.key(0), x, train=False), images
    )
    return variables["params"]


def one_of(tree: Any) -> Any:
    """The spec of one worker's part of a tree with a leading worker axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


@functools.cache
def averaging(exchange: Any, seed: int = 0) -> Callable[..., Any]:
    """The step of an exchange: mean is shared; sent and info are each worker's."""
    base = jax.random.key(seed)

    def step(state: Any, tree: Any) -> Any:
        count, inner = state
        key = jax.random.fold_in(base, count)
        mean, sent, inner, info, *_ = exchange.average(tree, inner, key)
        return mean, (sent, info), (count + 1, inner)

    return step


def start(exchange: Any, tree: Any) -> Any:
    """Fresh state for `averaging`."""
    return np.int32(0), exchange.init(one_of(tree))


def take(exchange: Any, *trees: Any, mapper: str = "vmap") -> list[Step]:
    """The steps of an exchange, one for each tree with a leading worker axis."""
    workers = len(jax.tree.leaves(trees[0])[0])
    state = start(exchange, trees[0])
    return run(averaging(exchange), state, list(trees), mapper=mapper, workers=workers)


def residual_of(state: Any) -> Any:
    """The stacked residual in the state of an exchange with error feedback."""
    inner = state[1]
    assert isinstance(inner.residual, PerWorker)
    return inner.residual.value

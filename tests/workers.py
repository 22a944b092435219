"""Run a per-worker function on many workers, under any mapper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.base import PerWorker

MAPPERS = parallel.MAPPERS


def gradients(workers: int, seed: int = 0) -> dict[str, Any]:
    """A tree with a leading worker axis: odd shapes, a scalar, heavy tails."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jnp.ndarray:
        values = rng.standard_t(3, size=(workers, *shape))
        return jnp.asarray(values, jnp.float32)

    return {"kernel": draw(7, 13), "bias": draw(13), "scale": draw(), "deep": draw(300)}


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
) -> list[Step]:
    """Apply `step(state, x) -> (shared, own, state)` to one input after the other.

    Args:
      step: per-worker function; `shared` must be equal on all workers.
      state: fresh state of one worker.
      inputs: a tree with a leading worker axis for each step.
      mapper: how the step is mapped.
      workers: their number.
    """
    crew = parallel.setup(workers, mapper)
    state = parallel.spread(state, crew)
    axes = parallel.axes(state)
    mapped = parallel.map_step(step, crew, in_axes=(axes, 0), out_axes=(None, 0, axes))
    results = []
    for x in inputs:
        shared, own, state = mapped(state, parallel.place(x, crew, 0))
        results.append(Step(*parallel.to_host((shared, own, state))))
    return results


def averaging(exchange: Any, seed: int = 0) -> Callable[..., Any]:
    """The step of an exchange: mean is shared; sent and info are each worker's."""
    base = jax.random.key(seed)

    def step(state: Any, tree: Any) -> Any:
        count, inner = state
        key = jax.random.fold_in(base, count)
        mean, sent, inner, info = exchange.average(tree, inner, key)
        return mean, (sent, info), (count + 1, inner)

    return step


def start(exchange: Any, tree: Any) -> Any:
    """Fresh state for `averaging`."""
    one = jax.tree.map(lambda x: x[0], tree)
    return jnp.int32(0), exchange.init(one)


def residual_of(state: Any) -> Any:
    """The stacked residual in the state of an exchange with error feedback."""
    inner = state[1]
    assert isinstance(inner.residual, PerWorker)
    return inner.residual.value

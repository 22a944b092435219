"""Run a mixer on workers that each pull towards a target of their own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.types import PerWorker

RATE, BETA = 0.05, 0.9


class Problem(NamedTuple):
    """f_i(x) = |x - target_i|^2 / 2 on a tree of two tensors."""

    start: Any  # one tree, the same for all workers
    targets: Any  # leaves [workers, ...]


def problem(workers: int, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jnp.ndarray:
        return jnp.asarray(rng.standard_t(4, size=shape), jnp.float32)

    return Problem(
        {"b": draw(5), "w": draw(6, 7)},
        {"b": draw(workers, 5), "w": draw(workers, 6, 7)},
    )


def train(
    mixer: jaxcomp.Mixer,
    given: Problem,
    steps: int,
    *,
    mapper: str = "vmap",
    rate: float = RATE,
    beta: float = BETA,
    stop_after: int | None = None,
) -> Any:
    """The models after each step: leaves [steps, workers, ...].

    Args:
      mixer: the last link of the chain.
      given: the problem.
      steps: to run.
      mapper: of the workers.
      rate: of local SGD.
      beta: of its momentum.
      stop_after: from this step on the gradient is 0: workers only talk.
    """
    workers = len(jax.tree.leaves(given.targets)[0])
    crew = parallel.setup(workers, mapper)
    tx = optax.chain(optax.sgd(rate, momentum=beta), jaxcomp.mixing(mixer, seed=0))

    def run(start: Any, targets: Any) -> PerWorker:
        def step(carry: Any, number: jax.Array) -> Any:
            x, state = carry
            pulls = number < (stop_after or steps)
            gradient = jax.tree.map(lambda a, t: jnp.where(pulls, a - t, 0), x, targets)
            updates, state = tx.update(gradient, state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), x

        fresh = (start, tx.init(start))
        (_, _), models = jax.lax.scan(step, fresh, jnp.arange(steps))
        return models

    mapped = parallel.map_step(run, crew, in_axes=(None, 0), out_axes=0)
    targets = parallel.place(given.targets, crew, 0)
    models = parallel.to_host(mapped(given.start, targets))
    return jax.tree.map(lambda rows: np.swapaxes(rows, 0, 1), models)


def flat(tree: Any, lead: int) -> np.ndarray:
    """All leaves side by side, after `lead` leading axes, in float64."""
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(*x.shape[:lead], -1) for x in leaves], axis=-1)


def spread_of(models: np.ndarray) -> np.ndarray:
    """Mean squared distance to the mean model, for each step."""
    mean = models.mean(axis=1, keepdims=True)
    return np.square(models - mean).sum(axis=-1).mean(axis=-1)

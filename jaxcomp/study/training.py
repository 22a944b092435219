"""Small runs on simulated workers: what a method does to training, step by step."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp.base import Array, Exchange, PerWorker, Tree
from jaxcomp.errors import UserError
from jaxcomp.parallel import axes, map_step, setup, spread
from jaxcomp.transform import pmean
from jaxcomp.trees import spec_of
from jaxcomp.verdicts import traffic_of

__all__ = ["History", "gradients", "train"]

Loss = Callable[[Tree, Any], Array]  # (params, batch of a worker) -> number


class History(NamedTuple):
    """What was recorded of a run; one entry for each step, before its update."""

    losses: np.ndarray  # mean over the workers
    errors: np.ndarray  # |given - sent|^2 / |given|^2, mean over the workers
    residuals: np.ndarray  # norm of what the memory keeps, largest of the workers
    step_bytes: int  # the message of one worker in a step
    params: Tree  # after the last step
    watched: np.ndarray  # what `watch` returned, after each step; empty without it

    def smoothed(self, over: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The steps in the middle of so many neighbours, and the means of their losses.

        Example:
          >>> losses = np.array([4.0, 2.0, 3.0, 1.0])
          >>> none = np.zeros(0)
          >>> steps, means = History(losses, none, none, 0, (), none).smoothed(3)
          >>> steps.tolist(), means.round(6).tolist()
          ([1.0, 2.0], [3.0, 2.0])
        """
        means = np.convolve(self.losses, np.full(over, 1 / over), "valid")
        return np.arange(len(means)) + (over - 1) / 2, means


class _Step(NamedTuple):
    """What a step reports."""

    loss: PerWorker
    error: PerWorker
    residual: PerWorker


def train(
    loss: Loss,
    params: Tree,
    batches: Iterable[Any],
    exchange: Exchange,
    optimizer: optax.GradientTransformation,
    seed: int = 0,
    watch: Callable[[Tree], Array] | None = None,
) -> History:
    """Train with an exchange, on workers that vmap simulates.

    A run that diverges goes on to its end, so that one sees how.

    Args:
      loss: of one worker; it is given params and this worker's batch.
      params: at the start, the same on all workers.
      batches: one for each step: trees of arrays with an axis of workers in front.
      exchange: over the axis "workers".
      optimizer: sees the mean that the exchange returns.
      seed: of the exchange.
      watch: params -> an array that is recorded after each step.

    Example:
      >>> from jaxcomp import make_exchange
      >>> loss = lambda w, target: jnp.sum((w - target) ** 2)
      >>> batches = [np.float32([[1, 0], [3, 0]])] * 20  # two workers
      >>> exchange = make_exchange(compressor="top_k(keep=0.5)")
      >>> run = train(loss, jnp.zeros(2), batches, exchange, optax.sgd(0.25))
      >>> run.params.round(2).tolist(), run.step_bytes
      ([2.0, 0.0], 8)
    """
    batches = list(batches)
    if not batches:
        raise UserError("a run needs the batch of at least one step")
    count = {np.shape(leaf)[0] for leaf in jax.tree.leaves(batches[0])}
    if len(count) != 1:
        raise UserError(
            "the arrays of a batch differ in their first axis, that of the workers: "
            f"{sorted(count)}"
        )
    workers = setup(count.pop(), mapper="vmap")
    mean = pmean(exchange, seed=seed)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, comm = state
        value, gradient = jax.value_and_grad(loss)(params, batch)
        average, comm = mean(gradient, comm)
        updates, opt_state = optimizer.update(average, opt_state, params)
        params = optax.apply_updates(params, updates)
        info = comm.info.value
        seen = _Step(*map(PerWorker, (value, info.gradient_error, info.residual_norm)))
        return (params, opt_state, comm), seen

    comm = mean.init(params)
    own = (None, None, axes(comm))
    step_bytes = round(traffic_of(exchange, spec_of(params), workers.size)[0])
    run = map_step(
        step, workers, in_axes=(own, 0), out_axes=(own, _Step(*[PerWorker(0)] * 3))
    )
    state = (params, optimizer.init(params), spread(comm, workers))
    seen, watched = [], []
    see = jax.jit(watch) if watch else None
    for batch in batches:
        state, report = run(state, batch)
        seen.append(report)
        if see is not None:
            watched.append(np.asarray(see(state[0])))
    return History(
        losses=np.array([np.mean(s.loss.value) for s in seen]),
        errors=np.array([np.mean(s.error.value) for s in seen]),
        residuals=np.array([np.max(s.residual.value) for s in seen]),
        step_bytes=step_bytes,
        params=state[0],
        watched=np.array(watched),
    )


def gradients(
    loss: Loss,
    params: Tree,
    batches: Iterable[Any],
    optimizer: optax.GradientTransformation,
) -> list[Tree]:
    """The workers' gradients in each step of a run without compression.

    Args:
      loss: as in `train`, and so are the other arguments.

    Returns:
      For each step a tree whose arrays have an axis of workers in front.
    """

    @jax.jit
    def step(params: Tree, opt_state: Any, batch: Any) -> Any:
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), each)
        updates, opt_state = optimizer.update(mean, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, each

    found, opt_state = [], optimizer.init(params)
    for batch in batches:
        params, opt_state, each = step(params, opt_state, batch)
        found.append(each)
    return found

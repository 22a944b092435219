"""Simulate all workers of a convex run on one device.

The steps between two evaluations are one compiled `lax.scan`, mapped over the workers
by `vmap`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.convex.experiment import Experiment
from jaxcomp.data import Partition, worker_batches
from jaxcomp.link_state import DistributedState
from jaxcomp.parallel import AXIS
from jaxcomp.problems import Features, objective, stochastic_gradient
from jaxcomp.problems.problem import Rows

__all__ = ["Crew", "Simulation", "batches_between", "make_simulation", "score"]


class Crew(NamedTuple):
    """State of all workers. All leaves but the step count have a worker axis first."""

    models: jax.Array  # [workers, features]
    averages: jax.Array  # over the steps, of each worker's models; the same shape
    link: DistributedState


class Simulation(NamedTuple):
    """Two functions: the initial state, and the state some steps later."""

    start: Callable[[], Crew]
    # (crew, int [steps, workers, examples of each], seed) -> crew
    advance: Callable[[Crew, np.ndarray, int], Crew]


def make_simulation(experiment: Experiment) -> Simulation:
    """Distributed SGD, simulated for all workers at once.

    Worker i starts from the model x_i = 0. In step t it computes an update

        u_i = -eta_t grad f_i(x_i)

    where f_i is the loss of its batch and eta_t the learning rate. The method then says
    what is added to its model: an exchange gives the average of the (compressed)
    updates of all workers; a mixer adds u_i and averages the models of neighbours.

    Gradients are multiplied by the learning rate before they reach the method. So a
    memory keeps updates that were scaled with the rate of their own step, as in
    Mem-SGD.

    Args:
      experiment: the problem, the method and the learning rate.

    Returns:
      The functions that start and advance the simulation.

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """
    problem, link, workers = experiment.problem, experiment.link, experiment.workers
    features, labels = _on_device(problem.features), jnp.asarray(problem.labels)
    # All workers share one step count, which is not mapped. Under vmap a branch on a
    # mapped count would run all branches and select one result.
    axes = cast(Any, Crew)(0, 0, cast(Any, DistributedState)(None, 0, 0))

    def start() -> Crew:
        def fresh(x: jax.Array) -> Crew:
            return Crew(x, x, cast(DistributedState, link.init(x)))

        zeros = jnp.zeros((workers, problem.dimension), jnp.float32)
        return jax.vmap(fresh, axis_size=workers, out_axes=axes)(zeros)

    def worker(
        crew: Crew, batches: jax.Array, key: jax.Array, features: Any, labels: Any
    ) -> Crew:
        def step(crew: Crew, batch: jax.Array) -> tuple[Crew, None]:
            x, t = crew.models, crew.link.step
            gradient = stochastic_gradient(
                features, labels, x, batch, problem.regulariser
            )
            own = -experiment.rate(t) * gradient
            mixed: Any = link.update(own, crew.link, x, key=key)
            x = x + mixed[0]
            return Crew(x, experiment.average(crew.averages, x, t), mixed[1]), None

        return jax.lax.scan(step, crew, batches)[0]

    given = (axes, 1, None, None, None)
    everyone = jax.vmap(worker, in_axes=given, out_axes=axes, axis_name=AXIS)
    program = jax.jit(everyone)

    def advance(crew: Crew, batches: np.ndarray, seed: int) -> Crew:
        chosen = jnp.asarray(batches, jnp.int32)
        return program(crew, chosen, jax.random.key(seed), features, labels)

    return Simulation(start, advance)


def batches_between(
    divided: Partition, batch_size: int, first: int, last: int
) -> np.ndarray:
    """The examples of steps first to last - 1, [steps, workers, examples of each].

    Example:
      >>> from jaxcomp.data import make_partition
      >>> divided = make_partition("random", np.zeros(6), workers=3, seed=0)
      >>> batches_between(divided, 3, first=1, last=6).shape  # an epoch is two steps
      (5, 3, 1)
    """
    per_epoch = divided.examples // batch_size
    parts = []
    while first < last:
        epoch, place = divmod(first, per_epoch)
        end = min(per_epoch, place + last - first)
        whole = worker_batches(divided, epoch=epoch, global_batch=batch_size)
        parts.append(whole[place:end])
        first += end - place
    return np.concatenate(parts)


def score(experiment: Experiment, crew: Crew) -> dict[str, float]:
    """How far the workers are from the optimum, and from each other, in float64.

    Returns:
      Three columns of `Evaluation`, by name.
    """
    value = objective(experiment.problem).value
    models = np.asarray(crew.models, np.float64)
    averages = np.asarray(crew.averages, np.float64)
    if not (np.isfinite(models).all() and np.isfinite(averages).all()):
        names = "suboptimality", "worst_suboptimality", "consensus_distance"
        return dict.fromkeys(names, np.nan)
    distances = np.square(models - models.mean(axis=0)).sum(axis=1)
    same = (averages == averages[0]).all()
    own = [value(x) for x in (averages[:1] if same else averages)]
    return {
        "suboptimality": value(averages.mean(axis=0)) - experiment.optimum.value,
        "worst_suboptimality": max(own) - experiment.optimum.value,
        "consensus_distance": float(np.sqrt(distances.mean())),
    }


def _on_device(features: Features) -> Features:
    if isinstance(features, Rows):
        indices, values = jnp.asarray(features.indices), jnp.asarray(features.values)
        return Rows(indices, values, features.width)
    return jnp.asarray(features)

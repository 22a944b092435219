"""All parts at work: mini-batch SGD on shares of the data approaches the optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import convex
from jaxcomp.convex import problems
from jaxcomp.data import make_partition, worker_batches


@pytest.mark.parametrize("kind", ["all", "random", "sorted"])
def test_the_mean_gradient_of_workers_approaches_the_optimum(kind):
    problem = problems.load("breast_cancer(regulariser=0.02)")
    workers, batch, epochs = 4, 16, 40
    divided = make_partition(kind, problem.labels, workers=workers, seed=0)
    batches = np.concatenate(
        [worker_batches(divided, epoch=e, global_batch=batch) for e in range(epochs)]
    )
    average = convex.make_average("quadratic(tau=1000)")
    features, labels = jnp.asarray(problem.features), jnp.asarray(problem.labels)

    def step(state, given):
        x, kept = state
        t, chosen = given
        gradients = jax.vmap(
            lambda mine: problems.stochastic_gradient(
                features, labels, x, mine, problem.regulariser
            )
        )(chosen)
        rate = 2 / problem.regulariser / (t.astype(jnp.float32) + 1000)
        x = x - rate * gradients.mean(axis=0)
        return (x, average(kept, x, t)), None

    start = jnp.zeros(problem.dimension), jnp.zeros(problem.dimension)
    given = jnp.arange(len(batches)), jnp.asarray(batches)
    (last, kept), _ = jax.jit(lambda: jax.lax.scan(step, start, given))()
    optimum = convex.solve(problem)
    value = problems.objective(problem).value
    begun = value(np.zeros(problem.dimension)) - optimum.value
    assert 0 < value(kept) - optimum.value < 1e-3 * begun
    assert 0 < value(last) - optimum.value < 1e-2 * begun

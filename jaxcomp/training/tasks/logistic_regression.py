"""Logistic regression, judged by how far f is above its known optimum."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.convex import make_average, solve
from jaxcomp.convex.problems import Problem, Rows
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import check
from jaxcomp.core.types import Array, Tree
from jaxcomp.runs.keys import check_keys
from jaxcomp.training.tasks.named import named
from jaxcomp.training.tasks.task import (
    Batch,
    Learnt,
    Measure,
    Sums,
    Task,
    Variables,
    shares_of,
)


def logistic_regression(config: Any, workers: Any, average: str = "final") -> Task:
    """The task of minimising the objective of a convex problem.

    f(x) = 1/m sum_i log(1 + exp(-b_i <a_i, x>)) + lam/2 |x|^2

    An evaluation computes f over all examples. `suboptimality` is f(x) - f*, with the
    least value f* from Newton's method in float64.

    Args:
      config: its dataset, which names the problem, partition, batch_size and seed.
      workers: of the run.
      average: of the iterates, each worker's own: final | mean | linear(tau=1) |
        quadratic(tau=1). Columns `ema_...` of metrics.csv are those of its mean over
        the workers.

    Raises:
      NotConverged: the problem has no optimum, or none that Newton's method finds.
    """
    check_keys(config, "partition", dataset="breast_cancer")
    check(Literal["linear"], "model", config.model)
    task, spec = "logistic_regression", config.dataset
    problem = named(task, "dataset", spec, Problem, {})
    classes = (problem.labels > 0).astype(int)
    least = solve(problem).value
    measure = Measure(
        "suboptimality", lambda loss, hits: loss - least, "{:.3g}".format, larger=False
    )
    rule = make_average(average)
    task = regression(problem)._replace(data=spec, measure=measure)
    if average.strip() != "final":  # which is the model itself
        task = task._replace(average=rule)

    def sized(config: Any) -> Task:
        if config.image_size:
            raise UserError(f"image_size={config.image_size}: {spec} has no pictures")
        shares = shares_of(config, classes, workers.size)
        return task._replace(shares=shares, resized=sized)

    return sized(config)


def regression(problem: Problem) -> Task:
    """The task of a problem, all examples of which are for training and for evaluation.

    Args:
      problem: from `jaxcomp.convex.problems`.
    """
    features = problem.features
    parts = features[:2] if isinstance(features, Rows) else (features,)
    examples = (*parts, problem.labels)

    def predicted(x: Array, batch: Batch) -> Array:
        if len(batch) == 3:  # a sparse matrix: indices and values of each row
            return jnp.sum(batch[1] * x[batch[0]], axis=1)
        return jnp.matmul(batch[0], x, precision=jax.lax.Precision.HIGHEST)

    def losses(params: Tree, batch: Batch) -> tuple[Array, Array]:
        """The terms of f for each example, and whether its label is found."""
        x, labels = params["x"], batch[-1]
        margins = labels * predicted(x, batch)
        penalty = 0.5 * problem.regulariser * jnp.sum(jnp.square(x))
        hits = (margins > 0).astype(jnp.float32)
        return jax.nn.softplus(-margins) + penalty[None], hits

    def loss(
        params: Tree, stats: Tree, carry: Tree, batch: Batch, key: Array
    ) -> tuple[Array, Learnt]:
        terms, hits = losses(params, batch)
        return jnp.mean(terms), Learnt(stats, carry, jnp.mean(hits))

    def score(
        variables: Variables, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Sums, Tree]:
        terms, hits = losses(variables.params, batch)
        return Sums(terms @ weights, hits @ weights, jnp.sum(weights)), carry

    return Task(
        model="linear",
        data=problem.name,
        train=examples,
        test=examples,
        shares=lambda epoch: np.arange(problem.examples)[None, None],
        init=lambda key: Variables({"x": jnp.zeros(problem.dimension)}, {}),
        loss=loss,
        score=score,
    )

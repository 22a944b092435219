"""The trainer finds the optimum that the convex testbed knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import training
from jaxcomp.convex import solve
from jaxcomp.convex.problems import Rows, load, loss, make, objective
from jaxcomp.training.tasks.logistic_regression import regression
from tests.training.small import built, small_config

SPEC = "breast_cancer(regulariser=0.01)"


def linear_config(**changes):
    return small_config(
        **{
            "task": "logistic_regression",
            "dataset": SPEC,
            "model": "linear",
            "batch_size": 64,
            "train_for": "30 epochs",
            "eval_every": "30 epochs",
            "learning_rate": 0.2,
            "weight_decay": 0.0,
            **changes,
        }
    )


def test_a_run_comes_near_the_optimum(tmp_path):
    problem = load(SPEC)
    optimum = solve(problem)
    result = training.train_and_evaluate(linear_config(), tmp_path)
    x = np.asarray(result.state.params["x"], np.float64)
    assert result.test_loss == pytest.approx(loss(problem, x), rel=1e-4)
    start = loss(problem, np.zeros(problem.dimension))
    assert result.test_loss - optimum.value < 0.01 * (start - optimum.value)
    assert result.test_accuracy > 0.97


def test_sparse_features_have_the_loss_and_gradient_of_dense_ones():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(9, 3)).astype(np.float32)
    indices = np.stack([rng.permutation(7)[:3] for _ in range(9)]).astype(np.int32)
    dense = np.zeros((9, 7), np.float32)
    np.put_along_axis(dense, indices, values, axis=1)
    labels = np.where(np.arange(9) % 2, 1.0, -1.0)
    x = rng.normal(size=7).astype(np.float32)
    found = []
    for features in (dense, Rows(indices, values, 7)):
        problem = make("toy", features, labels, 0.1)
        task = regression(problem)

        def mean(params, task=task):
            return task.loss(params, {}, {}, task.train, jax.random.key(0))[0]

        compute = jax.jit(jax.value_and_grad(mean))
        value, gradient = compute({"x": jnp.asarray(x)})
        assert float(value) == pytest.approx(loss(problem, x), rel=1e-5)
        exact = objective(problem).gradient(x)
        np.testing.assert_allclose(gradient["x"], exact, rtol=1e-4, atol=1e-6)
        found.append(float(value))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="model is one of linear, not 'resnet8'"):
        built(linear_config(model="resnet8"))
    with pytest.raises(ValueError, match="unknown dataset 'cancer'"):
        built(linear_config(dataset="cancer"))


@pytest.mark.parametrize("partition", ["sorted", "dirichlet(alpha=1.0)"])
def test_labels_may_decide_who_sees_what(partition):
    task = built(linear_config(partition=partition)).task
    labels = task.train[-1][task.shares(0)]
    assert set(np.unique(labels)) == {-1.0, 1.0}
    assert labels.shape[1:] == (2, 32)

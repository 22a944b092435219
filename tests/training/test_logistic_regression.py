"""The trainer finds the known optimum, and says how far it is from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import training
from jaxcomp.cli import train
from jaxcomp.convex import solve
from jaxcomp.convex.problems import Rows, load, loss, make, objective
from jaxcomp.training.tasks.logistic_regression import regression
from tests.training.small import built, rows, small_config

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


GOSSIP = {
    "task": "logistic_regression(average='quadratic(tau=20)')",
    "workers": 4,
    "mapper": "vmap",
    "mixer": "choco(gamma=0.2)",
    "topology": "ring",
    "exchange": "",
    "memory": "none",
    "compressor": "top_k(keep=0.1)",
    "batch_size": 16,
    "optimizer": "sgd(momentum=0)",
}


def test_a_run_is_minibatch_sgd_in_numpy(tmp_path):
    """In float64, with the same batches: the last model, the average, and f - f*."""
    problem = load(SPEC)
    optimum = solve(problem).value
    config = linear_config(
        task="logistic_regression(average='quadratic(tau=9)')",
        train_for="5 epochs",
        eval_every="5 epochs",
        schedule="convex_decay(epochs=2)",
        warmup="",
        optimizer="sgd(momentum=0)",
        exchange="exact",
        compressor="none",
        memory="none",
        keep_warmup="",
    )
    result = training.train_and_evaluate(config, tmp_path)
    shares = built(config).task.shares
    batches = [batch for epoch in range(5) for batch in shares(epoch)]
    x, average, total = np.zeros(problem.dimension), 0.0, 0.0
    for t, batch in enumerate(batches):
        a, b = problem.features[batch.ravel()], problem.labels[batch.ravel()]
        pulled = a.T @ (-b / (1 + np.exp(b * (a @ x)))) / len(b)
        x = x - 0.2 / (1 + t / (2 * len(shares(0)))) * (pulled + 0.01 * x)
        total += (t + 9) ** 2
        average = average + (t + 9) ** 2 / total * (x - average)
    np.testing.assert_allclose(result.state.params["x"], x, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(result.state.ema["x"], average, rtol=2e-4, atol=1e-5)
    *_, row = rows(tmp_path / "metrics.csv")
    of_model, of_average = loss(problem, x) - optimum, loss(problem, average) - optimum
    assert float(row["test_suboptimality"]) == pytest.approx(of_model, rel=1e-3)
    assert float(row["ema_suboptimality"]) == pytest.approx(of_average, rel=1e-3)
    assert result.test_accuracy > 0.95


def test_choco_comes_near_the_optimum(tmp_path):
    """Of sorted examples, from a file, whose f* is the same."""
    problem = load(SPEC)
    lines = [
        f"{label:g} " + " ".join(f"{j}:{v!r}" for j, v in enumerate(row, 1) if v)
        for label, row in zip(problem.labels, problem.features.tolist(), strict=True)
    ]
    (tmp_path / "cancer.txt").write_text("\n".join(lines))
    spec = f"libsvm(path={str(tmp_path / 'cancer.txt')!r}, regulariser=0.01)"
    config = linear_config(
        **GOSSIP, partition="sorted", dataset=spec, eval_every="10 epochs"
    )
    training.train_and_evaluate(config, tmp_path / "run")
    column = [row["ema_suboptimality"] for row in rows(tmp_path / "run/metrics.csv")]
    found = [float(value) for value in column if value]
    start = loss(problem, np.zeros(problem.dimension)) - solve(problem).value
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.02 * start


def test_a_rate_that_is_too_large_is_told(tmp_path, capsys):
    config = linear_config(**GOSSIP, loss_limit=100.0)
    config.learning_rate = 1e6
    assert train.run(config, str(tmp_path)) == 1
    assert "loss" in capsys.readouterr().err


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

"""Where convex runs arrive: near the optimum, where NumPy does, or nowhere."""

import numpy as np
import pytest

from jaxcomp.cli import train
from jaxcomp.convex import runner
from jaxcomp.convex.experiment import build, partition_of
from jaxcomp.convex.runner import batches_between
from tests.convex.small import CENTRALISED, arrays, small


@pytest.mark.parametrize("partition", ["random", "sorted"])
def test_choco_comes_near_the_optimum(partition, tmp_path):
    config = small(train_for="15 epochs", eval_every="5 epochs", partition=partition)
    result = runner.run(config, tmp_path)
    found = [row.suboptimality for row in result.rows]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.01 * result.start


def test_centralised_exact_is_minibatch_sgd(tmp_path):
    """30 steps in NumPy, float64, with the same batches."""
    config = small(**CENTRALISED, batch_size=8, average="mean")
    runner.run(config, tmp_path)
    problem = build(config).problem
    divided = partition_of(config, problem.labels, config.seed)
    batches = batches_between(divided, config.batch_size, 0, 30).reshape(30, -1)
    x, iterates = np.zeros(problem.dimension), []
    for t, batch in enumerate(batches):
        a, b = problem.features[batch].astype(np.float64), problem.labels[batch]
        pulled = a.T @ (-b / (1 + np.exp(b * (a @ x)))) / len(batch)
        x = x - 1 / (0.01 * (t + 1000)) * (pulled + 0.01 * x)
        iterates.append(x)
    expected = {"crew.models": x, "crew.averages": np.mean(iterates, axis=0)}
    for name, one in expected.items():
        whole = np.broadcast_to(one, (4, len(one)))  # the same for all workers
        stored = arrays(tmp_path)[name]
        np.testing.assert_allclose(stored, whole, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("rate", ["1e6", "1e30"], ids=["large", "infinite"])
def test_divergence_says_when_and_what_to_lower(rate, tmp_path, capsys):
    config = small(learning_rate=f"constant(rate={rate})")
    assert train.run(config, str(tmp_path)) == 1
    shown = capsys.readouterr().err
    assert "diverged by step 10 (seed 0)" in shown
    assert "Lower learning_rate='constant(rate=1e" in shown
    assert "or the gamma of the mixer" in shown


def test_sparse_problems_run(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(40):
        places = np.sort(rng.choice(np.arange(1, 10), size=3, replace=False))
        pairs = " ".join(f"{place}:{rng.normal():.3f}" for place in places)
        lines.append(f"{rng.choice([-1, 1])} {pairs}\n")
    file = tmp_path / "few.txt"
    file.write_text("".join(lines))
    config = small(problem=f"libsvm(path={str(file)!r}, regulariser=0.1)")
    result = runner.run(config, tmp_path / "run")
    assert 0 < result.finals[0].suboptimality < result.start

"""The small experiments: what they measure is what theory says."""

import numpy as np
import pytest

from configs import default
from jaxcomp import UserError, make_mixer, study, topology
from jaxcomp.convex import problems

GRADIENT = {
    "large": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32),
    "small": np.full((8,), 0.01, np.float32),
}


def test_a_point_has_bits_and_error_of_its_method():
    point = study.measure(GRADIENT, "none")
    assert (point.bits, point.error, point.contraction) == (32, 0, 1)
    sparse = study.measure(GRADIENT, "top_k(keep=0.25)", "whole_tree")
    flat = np.sort(np.concatenate([x.ravel() for x in GRADIENT.values()]) ** 2)
    assert sparse.error == pytest.approx(flat[: -len(flat) // 4].sum() / flat.sum())
    assert not sparse.unbiased


def test_the_error_of_random_k_is_the_part_that_is_left_out():
    point = study.measure(np.ones(1000, np.float32), "random_k(keep=0.3)")
    assert point.error == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize(
    ("tree", "draws", "says"), [(GRADIENT, 0, "draws"), ({}, 3, "no elements")]
)
def test_nothing_is_not_measured(tree, draws, says):
    with pytest.raises(UserError, match=says):
        study.measure(tree, "sign", draws=draws)


def test_the_frontier_is_a_falling_line():
    def point(bits, error):
        return study.Point(f"{bits}", bits, bits, error, None, False)

    points = [point(2, 0.5), point(1, 0.9), point(3, 0.6), point(2, 0.7), point(4, 0.1)]
    assert [(p.bits, p.error) for p in study.frontier(points)] == [
        (1, 0.9),
        (2, 0.5),
        (4, 0.1),
    ]
    assert study.frontier([]) == []


def test_errors_of_layers_add_up_to_the_whole():
    rows = study.layers(GRADIENT, "top_k(keep=0.1)")
    whole = study.measure(GRADIENT, "top_k(keep=0.1)").error
    assert sum(row.energy for row in rows) == pytest.approx(1)
    assert sum(row.energy * row.error for row in rows) == pytest.approx(whole)
    assert [row.name for row in rows] == ["large", "small"]


def test_a_layer_of_zeros_has_no_error():
    [row] = study.layers({"zero": np.zeros(4, np.float32)}, "sign")
    assert (row.energy, row.error) == (0, 0)


SMALL = {
    "task": "logistic_regression",
    "dataset": "synthetic(examples=64, features=8)",
    "model": "linear",
    "partition": "sorted",
    "workers": 2,
    "batch_size": 64,  # all examples in each step
    "optimizer": "sgd(momentum=0)",
    "schedule": "constant",
    "warmup": "",
    "weight_decay": 0.0,
    "learning_rate": 0.1,
}


def test_gradients_and_runs_are_those_of_plain_sgd():
    """The mean of two workers is the gradient over all; the run's loss follows."""
    config, problem = default.get_config(), problems.load(SMALL["dataset"])
    config.update(SMALL)
    f, x, losses = problems.objective(problem), np.zeros(8), []
    for each in study.gradients(config, steps=3, rate=0.1):
        losses.append(f.value(x))
        np.testing.assert_allclose(each["x"].mean(axis=0), f.gradient(x), atol=1e-6)
        x = x - 0.1 * f.gradient(x)
    changed = {"exchange": "exact", "memory": "none", "train_for": "3 steps"}
    run = study.train(config, **changed)
    np.testing.assert_allclose(run.steps["loss"], losses, rtol=1e-5)
    assert run.epochs["wire_bytes_per_step"][-1] == 4 * 8
    assert config.exchange == "gather"  # the given one stays as it is


def test_workers_agree_as_fast_as_the_gap_says():
    graph = topology("ring", 5)
    models = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    run = study.consensus(make_mixer("d_psgd", graph), models, rounds=20)
    factor = (1 - graph.spectral_gap) ** 2
    assert run.distances[0] == 1
    late = run.distances[10:]
    np.testing.assert_allclose(late[1:] / late[:-1], factor, rtol=1e-3)
    np.testing.assert_allclose(run.models.mean(0), models.mean(0), atol=1e-6)
    assert run.round_bytes == 2 * 4 * 20  # to both neighbours


def test_consensus_needs_a_vector_for_each_worker():
    mixer = make_mixer("d_psgd", "ring", workers=4)
    with pytest.raises(UserError, match=r"array of shape \(3, 2\)"):
        study.consensus(mixer, np.ones((3, 2), np.float32), rounds=1)


def test_the_error_of_a_rank_is_that_of_the_best_matrix():
    matrix = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    [found] = study.spectra({"w": matrix, "b": np.ones(7, np.float32)})
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    best = (u[:, :2] * s[:2]) @ v[:2]
    expected = np.sum((matrix - best) ** 2) / np.sum(matrix**2)
    assert found.error(2) == pytest.approx(expected, rel=1e-5)
    assert found.error(5) == 0

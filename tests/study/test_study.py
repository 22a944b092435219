"""The small experiments: what they measure is what theory says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import UserError, make_exchange, make_mixer, study, topology

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


def test_a_sweep_needs_a_place_for_its_values():
    with pytest.raises(UserError, match="has no {} where"):
        study.sweep(GRADIENT, "sign", (1, 2))


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


def test_a_table_has_the_columns_that_are_asked_for():
    point = study.Point("sign", 1.0, 1.0, 0.3633, None, False)
    assert study.table([point], ["method", "error", "contraction", "unbiased"]) == (
        "method  error  contraction  unbiased\nsign    0.363            -        no"
    )
    with pytest.raises(UserError, match="unknown column 'bit'. Valid: method"):
        study.table([point], ["bit"])
    with pytest.raises(UserError, match="at least one row"):
        study.table([])


@pytest.fixture(scope="module")
def problem():
    return study.regression(workers=3, size=6, examples=8)


def test_training_on_workers_is_training_on_all_examples(problem):
    """Without compression a step takes the gradient of the mean loss."""
    batches = [problem.batch] * 3
    exchange = make_exchange("exact", memory="none")
    run = study.train(
        problem.loss, problem.start, batches, exchange, optax.sgd(0.1), watch=jnp.sum
    )
    params = problem.start
    for step in range(3):
        losses, grads = jax.vmap(jax.value_and_grad(problem.loss), (None, 0))(
            params, problem.batch
        )
        assert run.losses[step] == pytest.approx(float(losses.mean()), rel=1e-5)
        params = params - 0.1 * grads.mean(axis=0)
        assert run.watched[step] == pytest.approx(float(params.sum()), rel=1e-4)
    np.testing.assert_allclose(run.params, params, rtol=1e-4)
    assert run.step_bytes == 4 * 6
    assert not run.errors.any()


def test_gradients_are_those_of_the_run(problem):
    found = study.gradients(
        problem.loss, problem.start, [problem.batch] * 2, optax.sgd(0.1)
    )
    each = jax.vmap(jax.grad(problem.loss), (None, 0))
    np.testing.assert_allclose(found[0], each(problem.start, problem.batch), rtol=1e-5)
    later = problem.start - 0.1 * found[0].mean(axis=0)
    np.testing.assert_allclose(found[1], each(later, problem.batch), rtol=1e-4)


def test_the_optimum_is_the_least_mean_loss(problem):
    features, targets = problem.batch
    joined = features.reshape(-1, 6), targets.ravel()
    best = np.linalg.lstsq(*joined, rcond=None)[0]
    pairs = zip(features, targets, strict=True)
    mean = np.mean([problem.loss(best, pair) for pair in pairs])
    assert problem.optimum == pytest.approx(mean, rel=1e-5)


def test_feedback_without_a_contraction_diverges(problem):
    """What notebook 2 shows: the residual grows without end."""
    exchange = make_exchange(
        compressor="random_k(keep=0.17, unbiased=True)",
        memory="error_feedback(allow=True)",
    )
    run = study.train(
        problem.loss, problem.start, [problem.batch] * 40, exchange, optax.sgd(0.02)
    )
    assert run.residuals[-1] > 1e3 * run.residuals[0]


@pytest.mark.parametrize("batches", [[], [(np.ones((2, 3)), np.ones((3, 3)))]])
def test_a_run_needs_a_batch_with_one_axis_of_workers(batches, problem):
    with pytest.raises(UserError, match="at least one step|axis, that of the workers"):
        study.train(
            problem.loss, problem.start, batches, make_exchange(), optax.sgd(0.1)
        )


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


def test_power_sgd_needs_gradients():
    with pytest.raises(UserError, match="no gradients"):
        study.power_sgd_errors([])

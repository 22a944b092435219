"""The loss and its derivatives: against sums by hand, sparse against dense."""

import numpy as np
import pytest

from jaxcomp.convex.problems import (
    Problem,
    Rows,
    load,
    loss,
    make,
    objective,
)


def random_problem(examples=40, features=6, regulariser=None, seed=0) -> Problem:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(examples, features)) * (rng.random(features) + 0.5)
    rows[rng.random(rows.shape) < 0.7] = 0
    return make("random", rows, rng.choice([-1, 1], examples), regulariser)


def sparse(problem: Problem) -> Problem:
    """The same data as padded rows."""
    whole = np.asarray(problem.features)
    longest = int((whole != 0).sum(axis=1).max()) + 2
    indices = np.zeros((len(whole), longest), np.int32)
    values = np.zeros((len(whole), longest), np.float32)
    for i, row in enumerate(whole):
        places = np.flatnonzero(row)
        indices[i, : len(places)], values[i, : len(places)] = places, row[places]
    rows = Rows(indices, values, whole.shape[1])
    return make(problem.name, rows, problem.labels, problem.regulariser)


both = pytest.mark.parametrize("form", [lambda p: p, sparse], ids=["dense", "sparse"])


@both
def test_loss_is_the_sum_over_examples(form):
    problem = random_problem(regulariser=0.3)
    x = np.random.default_rng(1).normal(size=6)
    total = 0.0
    for row, label in zip(problem.features, problem.labels, strict=True):
        total += np.log1p(np.exp(-float(label) * float(row.astype(np.float64) @ x)))
    expected = total / 40 + 0.15 * (x @ x)
    assert loss(form(problem), x) == pytest.approx(expected, rel=1e-14)


@both
def test_derivatives_are_those_of_the_loss(form):
    problem = form(random_problem())
    f = objective(problem)
    rng = np.random.default_rng(2)
    x, v = rng.normal(size=6), rng.normal(size=6)
    step = 1e-6
    slope = (f.value(x + step * v) - f.value(x - step * v)) / (2 * step)
    assert f.gradient(x) @ v == pytest.approx(slope, rel=1e-7)
    bend = (f.gradient(x + step * v) - f.gradient(x - step * v)) / (2 * step)
    product = f.hessian_product(f.curvature(x), v)
    np.testing.assert_allclose(product, bend, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(f.hessian(f.curvature(x)) @ v, product, rtol=1e-12)


def test_blocks_do_not_change_the_sums(monkeypatch):
    problem = random_problem()
    x = np.ones(6)
    whole, bends = objective(problem), objective(problem).curvature(x)
    monkeypatch.setattr("jaxcomp.convex.problems._BLOCK", 20)  # 3 rows at a time
    parts = objective(problem)
    assert parts.value(x) == pytest.approx(whole.value(x), rel=1e-14)
    np.testing.assert_allclose(parts.gradient(x), whole.gradient(x), rtol=1e-12)
    np.testing.assert_allclose(parts.hessian(bends), whole.hessian(bends), rtol=1e-12)


@both
def test_huge_margins_neither_overflow_nor_vanish(form):
    problem = form(make("huge", [[1e4, 0.0], [0.0, -1e4]], [1, 1], 0.0))
    x = np.array([-1.0, -1.0])  # hopelessly wrong on the first, right on the second
    assert loss(problem, x) == pytest.approx(5e3)
    np.testing.assert_allclose(objective(problem).gradient(x), [-5e3, 0.0])


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("digits", (1797, 65)),
        ("breast_cancer", (569, 30)),
        ("synthetic(examples=30, features=7, seed=3)", (30, 7)),
        ("synthetic(examples=1, features=1)", (1, 1)),
    ],
)
def test_embedded_problems(spec, shape):
    problem = load(spec)
    assert problem.features.shape == shape == (problem.examples, problem.dimension)
    assert problem.features.dtype == problem.labels.dtype == np.float32
    assert set(np.unique(problem.labels)) <= {-1.0, 1.0}
    assert problem.regulariser == 1 / shape[0]
    again = load(problem.name)
    np.testing.assert_array_equal(again.features, problem.features)
    np.testing.assert_array_equal(again.labels, problem.labels)


def test_what_the_embedded_data_are():
    digits = load("digits(regulariser=0.5)")
    assert digits.regulariser == 0.5
    assert (digits.features[:, -1] == 1).all()
    assert digits.features.min() == 0
    assert digits.features.max() == 1
    assert digits.labels[:10].tolist() == [1, -1] * 5  # the digits 0..9
    cancer = load("breast_cancer")
    np.testing.assert_allclose(cancer.features.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(cancer.features.std(axis=0), 1, rtol=1e-5)
    assert (cancer.labels == -1).sum() == 212


def test_synthetic_data_follow_the_seed_and_the_noise():
    first, same, other = (load(f"synthetic(seed={seed})") for seed in (0, 0, 1))
    assert first.dimension == 2000
    np.testing.assert_array_equal(first.features, same.features)
    assert not np.array_equal(first.labels, other.labels)
    lengths = np.square(first.features).sum(axis=1)
    assert lengths.mean() == pytest.approx(1, rel=0.05)
    clean = load("synthetic(noise=0)")
    assert np.mean(clean.labels != first.labels) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1.0], [2.0]], [0, 1], "labels are -1 or .1, not 0"),
        ([[1.0], [2.0]], [1], "2 examples have labels of shape"),
        ([1.0, 2.0], [1, 1], r"\[examples, features\], not \(2,\)"),
        (np.zeros((0, 3)), [], r"not \(0, 3\)"),
        ([[1.0], [np.nan]], [1, 1], "bad: example 1 is not finite"),
        ([[1.0], [2.0]], [1, np.nan], "labels are -1 or .1, not nan"),
    ],
)
def test_bad_data_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        make("bad", features, labels)


def test_digits_with_products():
    problem = load("digits(pairs=True)")
    rows, bias = problem.features[:, :-1], problem.features[:, -1]
    assert problem.name == "digits(pairs=True)"
    assert (bias == bias[0]).all()
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(axis=0), bias[0], rtol=1e-4)
    length = np.square(problem.features, dtype=np.float64).sum(axis=1)
    assert length.mean() == pytest.approx(1, rel=1e-5)

"""The optimum: optimal by its gradient, and the same as of other people's solvers."""

import numpy as np
import pytest

from jaxcomp.convex import NotConverged, solve
from jaxcomp.convex.problems import Problem, load, loss, make, objective
from tests.problems.test_problem import random_problem, sparse

PROBLEMS = [
    "digits",
    "breast_cancer",
    "breast_cancer(regulariser=1e-8)",
    "synthetic(examples=300, features=1)",
    "synthetic(examples=200, features=800, seed=2)",
    "synthetic(examples=200, features=800, regulariser=1e-6)",
]


@pytest.mark.parametrize("spec", PROBLEMS)
def test_the_gradient_vanishes_and_no_neighbour_is_lower(spec):
    problem = load(spec)
    optimum = solve(problem)
    start = np.linalg.norm(objective(problem).gradient(np.zeros(problem.dimension)))
    assert optimum.gradient_norm <= 1e-10 * start
    assert optimum.value == loss(problem, optimum.x)
    rng = np.random.default_rng(0)
    for _ in range(5):
        near = optimum.x + 1e-3 * rng.normal(size=problem.dimension)
        assert loss(problem, near) > optimum.value


@pytest.mark.parametrize("spec", PROBLEMS[:2] + PROBLEMS[4:5])
def test_scipy_finds_the_same_optimum(spec):
    from scipy.optimize import minimize

    problem = load(spec)
    f, optimum = objective(problem), solve(problem)
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9}
    start = np.zeros(problem.dimension)
    found = minimize(f.value, start, jac=f.gradient, method="L-BFGS-B", options=options)
    assert optimum.value <= found.fun + 1e-14
    assert found.fun == pytest.approx(optimum.value, abs=1e-9)


def test_sparse_and_dense_data_have_one_optimum():
    problem = random_problem(examples=100, features=12)
    one, other = solve(problem), solve(sparse(problem))
    np.testing.assert_allclose(one.x, other.x, rtol=1e-9)


def test_products_find_what_matrices_find(monkeypatch):
    problem = load("breast_cancer")
    exact = solve(problem)
    monkeypatch.setattr("jaxcomp.convex.solver._DENSE", 0)
    by_products = solve(problem)
    np.testing.assert_allclose(by_products.x, exact.x, rtol=1e-7)
    assert by_products.value == pytest.approx(exact.value, abs=1e-15)


def separable(count: int = 4) -> Problem:
    return make("separable", np.eye(count), np.ones(count), 0.0)


@pytest.mark.parametrize("dense", [0, 500])
def test_separable_data_without_a_regulariser_are_an_error(monkeypatch, dense):
    monkeypatch.setattr("jaxcomp.convex.solver._DENSE", dense)
    with pytest.raises(
        NotConverged, match=r"separable.*of 7 Newton steps.*regulariser"
    ):
        solve(separable(), max_iterations=7)


@pytest.mark.parametrize("dense", [0, 500])
def test_a_feature_that_never_occurs_needs_no_regulariser(monkeypatch, dense):
    monkeypatch.setattr("jaxcomp.convex.solver._DENSE", dense)
    rows = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    optimum = solve(make("singular", rows, [1, 1, -1], 0.0), max_iterations=100)
    np.testing.assert_allclose(optimum.x, [np.log(2), 0.0], atol=1e-9)

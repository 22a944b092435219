"""The optimum of a logistic regression, as exact as float64 allows."""

from typing import Annotated, NamedTuple

import numpy as np

from jaxcomp.convex.problems import Objective, Problem, objective
from jaxcomp.core.errors import RunFailed
from jaxcomp.core.specs import Count, Range, check

# Up to this many features the Hessian is built; above, only its products with vectors.
_DENSE = 500


class NotConverged(RunFailed, ArithmeticError):
    """The optimum was not reached, and the value that was reached is no valid f*."""


class Optimum(NamedTuple):
    """The point where f is smallest."""

    x: np.ndarray  # float64 [features]
    value: float
    gradient_norm: float
    iterations: int


def solve(
    problem: Problem, tolerance: float = 1e-10, max_iterations: int = 200
) -> Optimum:
    """Minimise f by Newton's method with a line search.

    It stops where |grad f(x)| <= tolerance |grad f(0)|. Each direction d solves
    H d = -grad f with the Hessian H: directly up to 500 features, and by conjugate
    gradients above. These stop at a residual relative to the gradient that becomes
    smaller as the gradient does, so that the first steps are cheap and the last ones
    converge superlinearly.

    With lam > 0, f(x) - f* <= |grad f(x)|^2 / (2 lam). At a tolerance of 1e-10 this
    error is far below the rounding of float64.

    Args:
      problem: to solve.
      tolerance: of the gradient's norm, relative to that at 0.
      max_iterations: the largest number of Newton steps.

    Raises:
      NotConverged: max_iterations were too few, or no step reduced f any more.
        Separable data without a regulariser has no optimum.

    Example:
      >>> from jaxcomp.convex import problems as problem
      >>> two = problem.make("two", [[1.0], [1.0]], [1, 1], regulariser=0.5)
      >>> optimum = solve(two)  # 1 / (1 + exp(x)) = x / 2
      >>> round(float(optimum.x[0]), 6)
      0.674832

    References:
      Nocedal and Wright, Numerical Optimization, chapter 7, 2006.
    """
    check(Annotated[float, Range(above=0, below=1)], "tolerance", tolerance)
    check(Count, "max_iterations", max_iterations)
    f = objective(problem)
    x = np.zeros(problem.dimension)
    value, slope = f.value(x), f.gradient(x)
    norm = start = float(np.linalg.norm(slope))
    iteration = 0
    while norm > tolerance * start and iteration < max_iterations:
        direction = _newton_direction(f, x, slope, min(0.1, norm / start))
        found = _line_search(f, x, value, slope, direction)
        if found is None:
            break
        x, value = found
        slope = f.gradient(x)
        norm = float(np.linalg.norm(slope))
        iteration += 1
    if norm <= tolerance * start:
        return Optimum(x, value, norm, iteration)
    raise NotConverged(
        f"{problem.name}: no optimum after {iteration} of {max_iterations} Newton "
        f"steps: |gradient| = {norm:.1e}, wanted {tolerance * start:.1e}. "
        f"A regulariser above {problem.regulariser:g} makes the problem easier"
    )


def _newton_direction(
    f: Objective, x: np.ndarray, slope: np.ndarray, forcing: float
) -> np.ndarray:
    """d with H d = -slope, exactly or nearly; -slope itself if H is singular."""
    bends = f.curvature(x)
    if len(x) > _DENSE:
        tolerance = forcing * float(np.linalg.norm(slope))
        return _conjugate_gradients(f, bends, slope, tolerance)
    try:
        return np.linalg.solve(f.hessian(bends), -slope)
    except np.linalg.LinAlgError:
        return -slope


def _line_search(
    f: Objective,
    x: np.ndarray,
    value: float,
    slope: np.ndarray,
    direction: np.ndarray,
) -> tuple[np.ndarray, float] | None:
    """Halve the step, from 1, until f decreases sufficiently (Armijo's rule)."""
    descent = float(slope @ direction)
    if not descent < 0:
        return None
    # Near the optimum the decrease is smaller than the rounding error of f.
    rounding = 8 * np.finfo(np.float64).eps * abs(value)
    length = 1.0
    for _ in range(50):
        there = x + length * direction
        reached = f.value(there)
        if reached <= value + 1e-4 * length * descent + rounding:
            return there, reached
        length /= 2
    return None


def _conjugate_gradients(
    f: Objective, bends: np.ndarray, slope: np.ndarray, tolerance: float
) -> np.ndarray:
    """d with |H d + slope| <= tolerance, computed from products with H only."""
    direction = np.zeros_like(slope)
    left = -slope
    search = left.copy()
    square = float(left @ left)
    for _ in range(10 * len(slope)):
        if np.sqrt(square) <= tolerance:
            break
        bent = f.hessian_product(bends, search)
        curvature = float(search @ bent)
        if curvature <= 0:  # flat up to rounding; the direction so far is a descent
            break
        step = square / curvature
        direction += step * search
        left -= step * bent
        square, before = float(left @ left), square
        search = left + square / before * search
    return direction if direction.any() else -slope

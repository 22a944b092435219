"""The optimum of a logistic regression, to the last digits: what f(x) - f* needs."""

from typing import Annotated, NamedTuple

import numpy as np

from jaxcomp.convex.problem import Objective, Problem, objective
from jaxcomp.errors import RunFailed
from jaxcomp.specs import Count, Range, check

__all__ = ["NotConverged", "Optimum", "solve"]

# A Hessian of this many features is a small matrix; above, only its products are used.
_DENSE = 500


class NotConverged(RunFailed, ArithmeticError):
    """The optimum was not reached, and what was reached would be a wrong f*."""


class Optimum(NamedTuple):
    """Where f is smallest."""

    x: np.ndarray  # float64 [features]
    value: float
    gradient_norm: float
    iterations: int


def solve(
    problem: Problem, tolerance: float = 1e-10, max_iterations: int = 200
) -> Optimum:
    """Newton's method with a line search: |grad f(x)| <= tolerance |grad f(0)|.

    Directions solve H d = -grad f: exactly up to 500 features, else by conjugate
    gradients, to a part of the gradient that falls with it. Then the last steps still
    gain more digits each, while the first do not waste products.

    With lam > 0, f(x) - f* <= |grad f(x)|^2 / (2 lam): 1e-10 leaves far less than the
    1e-16 that float64 can tell apart.

    Args:
      problem: what to solve.
      tolerance: above 0, of the gradient.
      max_iterations: Newton steps.

    Raises:
      NotConverged: after max_iterations, or where no step is downhill. Separable data
        without a regulariser has no optimum.

    Example:
      >>> from jaxcomp.convex import problem
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
    """d with H d = -slope, or nearly; -slope itself where H is singular."""
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
    """The longest of steps 1, 1/2, 1/4, ... that goes down as far as the slope says."""
    descent = float(slope @ direction)
    if not descent < 0:
        return None
    # Near the optimum the gain is less than what float64 keeps of f.
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
    """d with |H d + slope| <= tolerance, from products with H alone."""
    direction = np.zeros_like(slope)
    left = -slope
    search = left.copy()
    square = float(left @ left)
    for _ in range(10 * len(slope)):
        if np.sqrt(square) <= tolerance:
            break
        bent = f.hessian_product(bends, search)
        curvature = float(search @ bent)
        if curvature <= 0:  # flat up to rounding: what was found so far goes downhill
            break
        step = square / curvature
        direction += step * search
        left -= step * bent
        square, before = float(left @ left), square
        search = left + square / before * search
    return direction if direction.any() else -slope

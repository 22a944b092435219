"""Convex testbed: logistic regression whose optimum is known to many digits.

The problems themselves are `jaxcomp.convex.problems`.

Example:
  >>> from jaxcomp.convex.problems import load, loss
  >>> problem = load("digits")
  >>> optimum = solve(problem)
  >>> loss(problem, optimum.x) == optimum.value < loss(problem, 0 * optimum.x)
  True
"""

from jaxcomp.convex import averages
from jaxcomp.convex.averages import Average
from jaxcomp.convex.solver import NotConverged, Optimum, solve
from jaxcomp.core.specs import build

__all__ = [
    "Average",
    "NotConverged",
    "Optimum",
    "make_average",
    "solve",
]


def make_average(spec: str) -> Average:
    """The weighted average of the iterates, from a spec string.

    Example:
      >>> import jax.numpy as jnp
      >>> average = make_average("linear(tau=1)")  # weights 1, 2, ...
      >>> first = average(jnp.zeros(1), jnp.array([1.0]), 0)
      >>> float(average(first, jnp.array([4.0]), 1)[0])
      3.0
    """
    return build(spec, averages.REGISTRY, "average")

"""Convex testbed: logistic regression whose optimum is known to many digits.

The problems themselves are `jaxcomp.convex.problems`.

Example:
  >>> from jaxcomp.convex.problems import load, loss
  >>> problem = load("digits")
  >>> optimum = solve(problem)
  >>> loss(problem, optimum.x) == optimum.value < loss(problem, 0 * optimum.x)
  True
"""

from jaxcomp.convex import averages, rates
from jaxcomp.convex.averages import Average
from jaxcomp.convex.rates import Facts, Rate
from jaxcomp.convex.solver import NotConverged, Optimum, solve
from jaxcomp.core.specs import build

__all__ = [
    "Average",
    "Facts",
    "NotConverged",
    "Optimum",
    "Rate",
    "make_average",
    "make_rate",
    "solve",
]


def make_rate(spec: str, facts: Facts) -> Rate:
    """The learning rate of each step, from a spec string.

    Example:
      >>> rate = make_rate("decay(a=2, tau=4)", Facts(0.5, steps_per_epoch=10))
      >>> float(rate(4))
      0.5
    """
    return build(spec, rates.REGISTRY, "learning rate", facts)


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

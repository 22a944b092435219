"""Logistic regressions by name: features, labels and a regulariser.

The convex testbed (`jaxcomp.convex`) solves them to many digits, and the trainer learns
them like anything else (task `logistic_regression`).

Example:
  >>> load("breast_cancer").dimension
  30
"""

from jaxcomp.problems.problem import (
    Features,
    Objective,
    Problem,
    Rows,
    gradient,
    loss,
    objective,
    stochastic_gradient,
    take,
)
from jaxcomp.problems.testbeds import REGISTRY, load

__all__ = [
    "REGISTRY",
    "Features",
    "Objective",
    "Problem",
    "Rows",
    "gradient",
    "load",
    "loss",
    "objective",
    "stochastic_gradient",
    "take",
]

"""Logistic regression with an L2 regulariser: a small, strongly convex problem.

    f(x) = 1/m sum_i log(1 + exp(-b_i <a_i, x>)) + lam/2 |x|^2

with features a_i and labels b_i = -1 or +1. Gradients of batches are computed by JAX in
float32, as in training. The loss over all examples is computed by NumPy in float64,
because f(x) - f* is plotted down to values that float32 cannot resolve.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxcomp.errors import UserError
from jaxcomp.specs import Range, check

__all__ = [
    "Features",
    "Objective",
    "Problem",
    "Rows",
    "gradient",
    "loss",
    "make",
    "objective",
    "stochastic_gradient",
    "take",
]


class Rows(NamedTuple):
    """A sparse matrix, all of whose rows are padded by index 0 and value 0."""

    indices: Any  # int32 [examples, longest row]
    values: Any  # float32, the same shape
    width: int  # features


_BLOCK = 1 << 22  # elements of a dense matrix that are converted to float64 at a time

Regulariser = Annotated[float, Range(least=0)] | None  # None: 1 / examples
Features = Any  # float32 [examples, features], or Rows


class Problem(NamedTuple):
    """The data of one logistic regression, as NumPy arrays."""

    name: str
    features: Features
    labels: np.ndarray  # float32 [examples], -1 or +1
    regulariser: float  # lam

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        sparse = isinstance(self.features, Rows)
        return self.features.width if sparse else self.features.shape[1]


class Objective(NamedTuple):
    """f and its derivatives over all examples, in NumPy float64."""

    value: Callable[[ArrayLike], float]
    gradient: Callable[[ArrayLike], np.ndarray]
    curvature: Callable[[ArrayLike], np.ndarray]  # s (1 - s) of each, [examples]
    hessian_product: Callable[[np.ndarray, np.ndarray], np.ndarray]  # curvature, v
    hessian: Callable[[np.ndarray], np.ndarray]  # curvature -> [features, features]


def make(
    name: str, features: Features, labels: ArrayLike, regulariser: Regulariser = None
) -> Problem:
    """A problem of given data, which are checked.

    Args:
      name: of the problem, for tables and messages.
      features: [examples, features], or `Rows`.
      labels: [examples], -1 or +1.
      regulariser: lam; by default 1 / examples.

    Example:
      >>> problem = make("two", [[1.0, 0.0], [0.0, 2.0]], [1, -1])
      >>> problem.examples, problem.dimension, problem.regulariser
      (2, 2, 0.5)
    """
    if not isinstance(features, Rows):
        features = np.ascontiguousarray(features, np.float32)
        if features.ndim != 2 or 0 in features.shape:
            raise UserError(f"features are [examples, features], not {features.shape}")
    signs = np.asarray(labels, np.float32)
    values = features.values if isinstance(features, Rows) else features
    if signs.shape != values.shape[:1]:
        raise UserError(f"{len(values)} examples have labels of shape {signs.shape}")
    wrong = signs[np.abs(signs) != 1]
    if wrong.size:
        raise UserError(f"labels are -1 or +1, not {float(wrong[0])}")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise UserError(f"{name}: example {row} is not finite")
    check(Regulariser, "regulariser", regulariser)
    lam = 1 / len(signs) if regulariser is None else regulariser
    return Problem(name, features, signs, float(lam))


def gradient(
    rows: Features, labels: jax.Array, x: jax.Array, regulariser: jax.typing.ArrayLike
) -> jax.Array:
    """The gradient of f over a batch of examples, in the dtype of x.

    lam x - 1/n sum_i b_i s(-b_i <a_i, x>) a_i, where s is the logistic function.

    Args:
      rows: [n, features], or `Rows`.
      labels: [n].
      x: [features].
      regulariser: lam.

    Example:
      >>> gradient(jnp.eye(2), jnp.ones(2), jnp.zeros(2), 0.0).tolist()
      [-0.25, -0.25]
    """

    def slopes(predicted: jax.Array) -> jax.Array:
        return -labels * jax.nn.sigmoid(-labels * predicted) / labels.shape[0]

    if isinstance(rows, Rows):
        own = slopes(jnp.sum(rows.values * x[rows.indices], axis=1))
        pulled = jnp.zeros_like(x).at[rows.indices].add(rows.values * own[:, None])
    else:
        multiply = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        pulled = multiply(slopes(multiply(rows, x)), rows)
    return pulled + jnp.asarray(regulariser, x.dtype) * x


def take(features: Features, indices: jax.typing.ArrayLike) -> Features:
    """The features of some of the examples."""
    if isinstance(features, Rows):
        return Rows(features.indices[indices], features.values[indices], features.width)
    return features[indices]


def stochastic_gradient(
    features: Features,
    labels: jax.Array,
    x: jax.Array,
    indices: jax.Array,
    regulariser: jax.typing.ArrayLike,
) -> jax.Array:
    """`gradient` over a batch that is given by indices of examples.

    For many workers, map it over x and indices with `vmap`.

    Args:
      features: of all examples, as JAX arrays. They are an argument because a compiled
        program copies the arrays that its function closes over.
      labels: of all examples.
      x: [features].
      indices: int [n].
      regulariser: lam.
    """
    return gradient(take(features, indices), labels[indices], x, regulariser)


def loss(problem: Problem, x: ArrayLike) -> float:
    """f(x) over all examples in float64. To evaluate many x, use `objective`.

    Example:
      >>> problem = make("two", [[1.0, 0.0], [0.0, 2.0]], [1, -1])
      >>> round(loss(problem, [0.0, 0.0]), 6)
      0.693147
    """
    return objective(problem).value(x)


def objective(problem: Problem) -> Objective:
    """f, its gradient and its Hessian over all examples, in NumPy float64."""
    lam, count, width = problem.regulariser, problem.examples, problem.dimension
    labels = problem.labels.astype(np.float64)
    parts = _parts(problem.features)

    def predicted(x: np.ndarray) -> np.ndarray:
        return np.concatenate([part @ x for _, part in parts()])

    def pulled(slopes: np.ndarray) -> np.ndarray:
        total = np.zeros(width)
        for rows, part in parts():
            total += part.T @ slopes[rows]
        return total / count

    def value(x: ArrayLike) -> float:
        place = np.asarray(x, np.float64)
        terms = np.logaddexp(0, -labels * predicted(place))
        return float(np.mean(terms)) + lam / 2 * float(np.sum(np.square(place)))

    def slope(x: ArrayLike) -> np.ndarray:
        place = np.asarray(x, np.float64)
        return lam * place - pulled(labels * _logistic(-labels * predicted(place)))

    def curvature(x: ArrayLike) -> np.ndarray:
        likely = _logistic(predicted(np.asarray(x, np.float64)))
        return likely * (1 - likely)

    def hessian_product(bends: np.ndarray, v: np.ndarray) -> np.ndarray:
        return pulled(bends * predicted(v)) + lam * v

    def hessian(bends: np.ndarray) -> np.ndarray:
        total = lam * np.eye(width)
        for rows, part in parts():
            square = (part * np.sqrt(bends[rows] / count)[:, None]).T
            square = square @ square.T
            total += square if isinstance(square, np.ndarray) else square.toarray()
        return total

    return Objective(value, slope, curvature, hessian_product, hessian)


def _parts(features: Features) -> Callable[[], Iterator[tuple[slice, Any]]]:
    """A function that iterates over the features in float64, in blocks of rows.

    Sparse features become one SciPy matrix without the padding. Dense ones are
    converted a block at a time, since a float64 copy of a large data set may not fit
    into memory.
    """
    if not isinstance(features, Rows):
        step = max(1, _BLOCK // features.shape[1])
        slices = [slice(i, i + step) for i in range(0, len(features), step)]
        return lambda: ((rows, features[rows].astype(np.float64)) for rows in slices)
    # Imported here, because it takes a while to load and dense problems do not need it.
    from scipy.sparse import csr_array

    real = features.values != 0
    ends = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
    values = features.values[real].astype(np.float64)
    shape = len(features.values), features.width
    whole = csr_array((values, features.indices[real], ends), shape=shape)
    return lambda: iter([(slice(None), whole)])


def _logistic(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow for large z of either sign."""
    return np.exp(-np.logaddexp(0, -z))

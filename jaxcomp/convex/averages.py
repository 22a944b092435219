"""Weighted averages of the iterates, updated at every step.

    avg_t = sum_s w_s x_s / W_t    with W_t = sum_s w_s and s = 0..t

is computed as avg += w_t / W_t (x - avg), which stores no iterates and adds up no large
sums. For each weighting here w_t / W_t has a closed form, so the average is the only
state.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxcomp.core.specs import Positive

# (average before, x_t, t) -> average after. t counts from 0, and at t = 0 the average
# before is not used.
Average = Callable[[jax.Array, jax.Array, ArrayLike], jax.Array]


def final() -> Average:
    """The last iterate: no average at all."""
    return lambda average, x, t: x


def mean() -> Average:
    """The plain mean of all iterates: w_t = 1.

    Example:
      >>> average = mean()
      >>> first = average(jnp.zeros(1), jnp.array([1.0]), 0)
      >>> float(average(first, jnp.array([2.0]), 1)[0])
      1.5
    """
    return _running(lambda t: 1 / (t + 1))


def linear(tau: Positive = 1.0) -> Average:
    """Weights that grow linearly.

    w_t = t + tau, so W_t = (t + 1) (t / 2 + tau).

    Args:
      tau: offset of the weights; usually the tau of the learning rate's decay.

    References:
      Lacoste-Julien, Schmidt and Bach, A Simpler Approach to Obtaining an O(1/t)
      Convergence Rate for the Projected Stochastic Subgradient Method,
      arXiv:1212.2002, 2012.
    """
    return _running(lambda t: (t + tau) / (t + 1) / (t / 2 + tau))


def quadratic(tau: Positive = 1.0) -> Average:
    """Weights that grow quadratically.

    w_t = (t + tau)^2, so W_t = (t + 1) (tau^2 + tau t + t (2 t + 1) / 6).

    Args:
      tau: offset of the weights; usually the tau of the learning rate's decay.

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """

    def share(t: jax.Array) -> jax.Array:
        # Everything is divided by (t + tau)^2 first: the square of a large tau may
        # overflow.
        part, rest = tau / (t + tau), t / (t + tau)
        mixed = part * part + part * rest + rest * ((2 * t + 1) / (t + tau)) / 6
        return 1 / (t + 1) / mixed

    return _running(share)


REGISTRY: dict[str, Callable[..., Average]] = {
    "final": final,
    "linear": linear,
    "mean": mean,
    "quadratic": quadratic,
}


def _running(share: Callable[[jax.Array], jax.Array]) -> Average:
    """The update whose share of the new iterate is share(t) = w_t / W_t."""

    def update(average: jax.Array, x: jax.Array, t: ArrayLike) -> jax.Array:
        step = jnp.asarray(t).astype(jnp.float32)
        part = share(step).astype(average.dtype)
        return jnp.where(step > 0, average + part * (x - average), x)

    return update

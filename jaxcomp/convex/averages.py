"""Weighted averages of the iterates, kept up step by step.

avg_t = sum_s w_s x_s / W_t with W_t = sum_s w_s, s = 0..t, and its running form

    avg += w_t / W_t (x - avg)

which neither stores iterates nor adds up large sums. w_t / W_t has a closed form for
each weighting, so that the average itself is all of the state.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxcomp.specs import Positive

__all__ = ["REGISTRY", "Average", "final", "linear", "mean", "quadratic"]

# (average before, x_t, t) -> average after. t counts from 0, and what stands before
# the first step does not matter.
Average = Callable[[jax.Array, jax.Array, ArrayLike], jax.Array]


def final() -> Average:
    """The last iterate alone."""
    return lambda average, x, t: x


def mean() -> Average:
    """All iterates alike: w_t = 1.

    Example:
      >>> average = mean()
      >>> first = average(jnp.zeros(1), jnp.array([1.0]), 0)
      >>> float(average(first, jnp.array([2.0]), 1)[0])
      1.5
    """
    return _running(lambda t: 1 / (t + 1))


def linear(tau: Positive = 1.0) -> Average:
    """w_t = t + tau, so W_t = (t + 1) (t / 2 + tau).

    Args:
      tau: above 0; of the learning rate's decay, if it has one.

    References:
      Lacoste-Julien, Schmidt and Bach, A Simpler Approach to Obtaining an O(1/t)
      Convergence Rate for the Projected Stochastic Subgradient Method,
      arXiv:1212.2002, 2012.
    """
    return _running(lambda t: (t + tau) / (t + 1) / (t / 2 + tau))


def quadratic(tau: Positive = 1.0) -> Average:
    """w_t = (t + tau)^2, so W_t = (t + 1) (tau^2 + tau t + t (2 t + 1) / 6).

    Args:
      tau: above 0; of the learning rate's decay, if it has one.

    References:
      Stich et al., Sparsified SGD with Memory, arXiv:1809.07599, 2018.
    """

    def share(t: jax.Array) -> jax.Array:
        # Divided by (t + tau)^2 beforehand: a square of a large tau may overflow.
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
    """The update by w_t / W_t, in the dtype of the average."""

    def update(average: jax.Array, x: jax.Array, t: ArrayLike) -> jax.Array:
        step = jnp.asarray(t).astype(jnp.float32)
        part = share(step).astype(average.dtype)
        return jnp.where(step > 0, average + part * (x - average), x)

    return update

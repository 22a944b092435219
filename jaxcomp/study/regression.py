"""Linear regression on workers with data of their own: a problem that runs at once."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array
from jaxcomp.errors import UserError

__all__ = ["Regression", "regression"]


class Regression(NamedTuple):
    """Least squares with a known optimum; `batch` is the whole data of each worker."""

    batch: tuple[np.ndarray, np.ndarray]  # [workers, examples, size] and targets
    start: Array  # [size] zeros
    optimum: float  # the least mean loss over all workers

    @staticmethod
    def loss(params: Array, batch: tuple[Array, Array]) -> Array:
        """Half the mean squared error of one worker."""
        features, targets = batch
        return jnp.mean((features @ params - targets) ** 2) / 2


def regression(
    workers: int = 4,
    size: int = 256,
    examples: int = 512,
    apart: float = 1.0,
    seed: int = 0,
) -> Regression:
    """Draw the data of all workers.

    Worker i has Gaussian features and targets x (w + apart u_i) + noise, so each worker
    has an optimum of its own, and the gradients at the common one are not zero.

    Args:
      workers: their number.
      size: of the params.
      examples: of each worker, at least `size`.
      apart: how far the workers' own optima lie from the common one.
      seed: of the data.

    Example:
      >>> problem = regression(workers=2, size=4, examples=8)
      >>> problem.batch[0].shape, problem.start.shape
      ((2, 8, 4), (4,))
    """
    if min(workers, size) < 1 or examples < size:
        raise UserError(
            "regression needs a worker, a parameter, and as many examples as "
            f"parameters: workers={workers}, size={size}, examples={examples}"
        )
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    own = common + apart * rng.normal(size=(workers, size))
    features = rng.normal(size=(workers, examples, size))
    noise = 0.1 * rng.normal(size=(workers, examples))
    targets = np.einsum("wes,ws->we", features, own) + noise
    joined = features.reshape(-1, size), targets.reshape(-1)
    best = np.linalg.lstsq(*joined, rcond=None)[0]
    optimum = float(np.mean((joined[0] @ best - joined[1]) ** 2) / 2)
    batch = features.astype(np.float32), targets.astype(np.float32)
    return Regression(batch, jnp.zeros(size), optimum)

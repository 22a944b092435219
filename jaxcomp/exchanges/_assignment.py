"""Assignment: which option each group takes where all together have a limit."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array

__all__ = ["assign"]


def assign(errors: Array, words: np.ndarray, limit: int) -> Array:
    """For each group an option: those that save most error for a word, while they fit.

    From the cheapest option of each group on, always the upgrade with the largest
    (error saved) / (words added) that still fits, until none does. A larger limit never
    gives a larger error: at the first upgrade on which two limits differ, the one that
    fits the larger alone saves more than all that the smaller has room for.

    Args:
      errors: [groups, options] float32, finite.
      words: [groups, options] integers.
      limit: what all words together may be; at least what the cheapest are.

    Returns:
      [groups] int32.

    Example:
        >>> errors = jnp.array([[9.0, 1.0], [4.0, 3.0]])
        >>> words = np.array([[1, 5], [1, 5]])
        >>> [assign(errors, words, n).tolist() for n in (2, 6, 10)]
        [[0, 0], [1, 0], [1, 1]]
    """
    table = jnp.asarray(words, jnp.int32)
    group = np.arange(len(words))

    def scores(choices: Array) -> Array:
        """Error saved for a word by every upgrade; -inf where there is none."""
        now, error = table[group, choices], errors[group, choices]
        added, saved = table - now[:, None], error[:, None] - errors
        fits = jnp.sum(now) + added <= limit
        # What costs nothing comes first.
        rate = saved / jnp.maximum(added.astype(jnp.float32), np.float32(1e-30))
        return jnp.where(fits & (added >= 0) & (saved > 0), rate, -jnp.inf)

    def upgrade(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        choices, score = carry
        best = jnp.argmax(score).astype(jnp.int32)
        options = np.int32(words.shape[1])
        choices = choices.at[best // options].set(best % options)
        return choices, scores(choices)

    # It ends: the error of the group that is upgraded falls every time.
    start = jnp.asarray(np.argmin(words, axis=1), jnp.int32)
    carry = (start, scores(start))
    return jax.lax.while_loop(lambda c: jnp.any(c[1] > -jnp.inf), upgrade, carry)[0]

"""Assignment: one option for each group, so that their total size stays in a limit."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array

__all__ = ["assign"]


def assign(errors: Array, words: np.ndarray, limit: int) -> Array:
    """Choose greedily an option for each group, by the error saved for each word.

    Each group begins with its cheapest option. Then the upgrade with the largest
    (error saved) / (words added) of those that still fit is made, until none fits. A
    larger limit never gives a larger error: at the first upgrade in which two limits
    differ, the upgrade that fits only the larger one saves more than all upgrades for
    which the smaller one has room.

    Args:
      errors: [groups, options] float32, finite.
      words: [groups, options] integers.
      limit: of the sum of all words; at least that of the cheapest options.

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
        """Error saved for each word by every upgrade; -inf where there is none."""
        now, error = table[group, choices], errors[group, choices]
        added, saved = table - now[:, None], error[:, None] - errors
        fits = jnp.sum(now) + added <= limit
        # Upgrades that add no words come first.
        rate = saved / jnp.maximum(added.astype(jnp.float32), np.float32(1e-30))
        return jnp.where(fits & (added >= 0) & (saved > 0), rate, -jnp.inf)

    def upgrade(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        choices, score = carry
        best = jnp.argmax(score).astype(jnp.int32)
        options = np.int32(words.shape[1])
        choices = choices.at[best // options].set(best % options)
        return choices, scores(choices)

    # The loop ends, because each upgrade lowers the error of its group.
    start = jnp.asarray(np.argmin(words, axis=1), jnp.int32)
    carry = (start, scores(start))
    return jax.lax.while_loop(lambda c: jnp.any(c[1] > -jnp.inf), upgrade, carry)[0]

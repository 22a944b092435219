"""fedjax 0.0.17: TernGrad with clipping, and DRIVE, which is EDEN with one bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.vectors import draw
from tests.laws import draws as ours


def check_same_statistics(a: np.ndarray, b: np.ndarray, z: float = 6.0) -> None:
    """Mean and variance of every element agree as far as the draws can tell."""
    gap = a.mean(axis=0) - b.mean(axis=0)
    variances = a.var(axis=0), b.var(axis=0)
    spread = np.sqrt(variances[0] / len(a) + variances[1] / len(b))
    typical = np.sqrt(np.square(spread).mean())
    assert (np.abs(gap) <= z * (spread + 0.1 * typical)).all()
    total = variances[0].sum(), variances[1].sum()
    assert total[0] == pytest.approx(total[1], rel=0.05)
    # Standard error of a variance, from the fourth moment.
    errors = [
        np.sqrt((((rows - rows.mean(axis=0)) ** 4).mean(axis=0) - v**2) / len(rows))
        for rows, v in zip((a, b), variances, strict=True)
    ]
    allowed = z * np.hypot(*errors) + 0.1 * (variances[0] + variances[1])
    assert (np.abs(variances[0] - variances[1]) <= allowed).all()


def test_drive_is_eden_with_one_bit(fedjax: Any) -> None:
    """One block of 256, so that both rotate the same elements together.

    Gaussian, for the one Hadamard matrix in fedjax's rotation leaves DRIVE biased on
    vectors that a few large elements rule: with 256 log-normal numbers the mean of 4000
    draws is twice as far off as chance explains.
    """
    x, draws = draw("gaussian", (256,)), 500
    compression = fedjax.aggregators.compression
    rotation = compression.walsh_hadamard

    # The steps of its structured_drive_quantizer, which current JAX cannot run: the
    # mean over clients behind them uses jax.tree_map, removed since.
    def drive(key: jax.Array) -> jax.Array:
        rotated, _ = rotation.structured_rotation(jnp.asarray(x), key)
        (coded,) = compression.drive_pytree([rotated])
        return rotation.inverse_structured_rotation(coded, key, np.array(x.shape))

    theirs = jax.vmap(drive)(jax.random.split(jax.random.key(0), draws))
    check_same_statistics(
        ours("eden(bits=1)", x, draws), np.asarray(theirs, np.float64)
    )


@pytest.mark.parametrize("source", ["gaussian", "log-normal"])
def test_terngrad_with_clipping(fedjax: Any, source: str) -> None:
    """Both clip at 2.5 sigma: of a vector with mean zero, where sigma is the RMS."""
    x, draws = draw(source, (1000,)), 4000
    x -= x.mean()
    quantize = fedjax.aggregators.compression.terngrad_quantize
    keys = jax.random.split(jax.random.key(0), draws)
    theirs = jax.jit(jax.vmap(lambda key: quantize(jnp.asarray(x), key)))(keys)
    check_same_statistics(
        ours("terngrad(clip=2.5)", x, draws), np.asarray(theirs, np.float64)
    )

"""Running averages against the direct sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.convex import make_average

WEIGHTS = {
    "mean": lambda t: 1.0 + 0 * t,
    "linear": lambda t: t + 1.0,
    "linear(tau=0.01)": lambda t: t + 0.01,
    "linear(tau=250)": lambda t: t + 250.0,
    "quadratic": lambda t: (t + 1.0) ** 2,
    "quadratic(tau=0.01)": lambda t: (t + 0.01) ** 2,
    "quadratic(tau=250)": lambda t: (t + 250.0) ** 2,
    "quadratic(tau=1e30)": lambda t: 1.0 + 0 * t,  # t no longer matters
}


def run(spec: str, iterates: np.ndarray, start: float = 0.0) -> np.ndarray:
    """The averages after each step, from one compiled loop."""
    average = make_average(spec)

    def step(before, pair):
        after = average(before, *pair)
        return after, after

    steps = jnp.arange(len(iterates))
    begin = jnp.full(iterates.shape[1:], start, jnp.float32)
    loop = jax.jit(lambda pairs: jax.lax.scan(step, begin, pairs)[1])
    return np.asarray(loop((jnp.asarray(iterates, jnp.float32), steps)))


@pytest.mark.parametrize("spec", WEIGHTS)
@pytest.mark.parametrize("start", [0.0, 1e20, float("nan")])
def test_running_averages_are_weighted_sums(spec, start):
    iterates = np.random.default_rng(0).normal(size=(700, 3))
    weights = WEIGHTS[spec](np.arange(700.0))[:, None]
    sums = np.cumsum(weights * iterates, axis=0) / np.cumsum(weights, axis=0)
    found = run(spec, iterates, start)
    np.testing.assert_allclose(found, sums, atol=2e-6)
    np.testing.assert_array_equal(found[0], iterates[0].astype(np.float32))


@pytest.mark.parametrize("spec", [*WEIGHTS, "final"])
def test_the_average_of_equal_iterates_is_exact(spec):
    iterates = np.full((2000, 1), 0.1, np.float32)
    np.testing.assert_array_equal(run(spec, iterates), iterates)


@pytest.mark.parametrize("spec", WEIGHTS)
def test_shares_stay_shares_after_many_steps(spec):
    average = make_average(spec)
    for step in (1, 10**3, 10**6, 2 * 10**9):
        moved = float(average(jnp.zeros(1), jnp.ones(1), jnp.int32(step))[0])
        assert 0 < moved <= 1
        assert moved <= 1.01 * 3 / (step + 1) or step == 1

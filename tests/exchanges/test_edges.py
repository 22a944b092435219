"""What every exchange does at the edges of numbers, and of what a tree may be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.exchanges import REGISTRY
from tests.exchanges.matrix import (
    FIRST,
    PAIRS,
    compiled,
    few_workers,
    gradients,
    name_of,
    steps_of,
)
from tests.tiers import tiers


def is_quick(case):
    """One compressor for each exchange."""
    return case in FIRST.items()


def test_every_exchange_is_here():
    assert {name_of(exchange) for exchange, _ in PAIRS} == set(REGISTRY)


def take(exchange, compressor, tree, count=1):
    """Steps on a tree with a leading worker axis that stands still."""
    workers = few_workers(exchange)
    built = compiled(exchange, compressor, workers)
    return steps_of(built, workers, count, lambda i: tree)


# --- Numbers at the ends of their range -----------------------------------------------


@functools.cache
def reports(exchange, compressor, power):
    """`Info` of two steps whose gradients are scaled by 2^power.

    At step 0 `budget` chooses; what it chose it sends at step 1.
    """
    tree = gradients(few_workers(exchange), 0)
    tree = jax.tree.map(lambda x: jnp.ldexp(x, power), tree)
    return [step.info for step in take(exchange, compressor, tree, count=2)]


# A vote has the same length whatever was given.
WITH_SCALE = [case for case in PAIRS if case[0] != "majority_vote"]


@pytest.mark.parametrize("power", [-80, 80])
@pytest.mark.parametrize(("exchange", "compressor"), tiers(WITH_SCALE, is_quick))
def test_the_report_does_not_depend_on_the_scale(exchange, compressor, power):
    """Numbers whose squares float32 does not know."""
    usual, scaled = (reports(exchange, compressor, p) for p in (0, power))
    for a, b in zip(usual, scaled, strict=True):
        np.testing.assert_allclose(b.gradient_error, a.gradient_error, atol=1e-5)
        unsent = np.ldexp(b.unsent_norm, -power)
        np.testing.assert_allclose(unsent, a.unsent_norm, rtol=1e-4, atol=1e-5)
        np.testing.assert_equal(b.extra, a.extra)


@pytest.mark.parametrize(("exchange", "compressor"), tiers(PAIRS, is_quick))
def test_a_mean_in_float16_does_not_overflow(exchange, compressor):
    """The sum of the workers' gradients does."""
    largest = float(jnp.finfo(jnp.float16).max)
    rng = np.random.default_rng(0)
    shapes = jax.tree.map(np.shape, gradients(few_workers(exchange), 0))
    tree = {
        name: jnp.asarray(rng.uniform(0.6, 0.9, shape) * largest, jnp.float16)
        for name, shape in shapes.items()
    }
    [step] = take(exchange, compressor, tree)
    for mean in jax.tree.leaves(step.mean):
        assert mean.dtype == np.float16
        assert np.isfinite(mean).all()

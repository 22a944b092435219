"""NaN stands for no value anywhere: each method runs where JAX refuses it."""

import functools

import jax
import pytest

from tests.every_method import ALIKE, EXCHANGES, MIXERS, WORKERS, trees, two_steps
from tests.tiers import tiers


@pytest.mark.parametrize(
    "name", tiers((*EXCHANGES, *MIXERS), lambda name: name not in ALIKE)
)
def test_ordinary_numbers_pass_the_check(name):
    step = jax.jit(jax.vmap(functools.partial(two_steps, name), axis_name="workers"))
    with jax.debug_nans(True):
        jax.block_until_ready(step(trees(WORKERS), trees(WORKERS, seed=1)))

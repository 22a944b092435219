"""Nothing here is sent by a reduce-scatter, whose results on CPUs have been wrong.

XLA runs it with Gloo's algorithm of halving and doubling, which several versions are
reported to get wrong. An exchange that needs its result can take an all-to-all.
"""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import wire
from tests import every_method
from tests.every_method import EXCHANGES, MIXERS, WORKERS

TREE = {
    "kernel": jax.ShapeDtypeStruct((8, 9), jnp.float32),
    "bias": jax.ShapeDtypeStruct((41,), jnp.float32),
}


def kinds(step, *args) -> set[str]:
    """The kinds of collectives of the function of one worker."""
    found = wire.traced_collectives(step, *args, axis="workers", workers=WORKERS)
    return {collective.kind for collective in found}


@pytest.mark.parametrize("name", EXCHANGES)
def test_no_exchange_scatters_a_sum(name):
    exchange = every_method.exchange(name)

    def step(tree, state, seed):
        return exchange.average(tree, state, jax.random.key(seed)).mean

    state = jax.eval_shape(lambda: exchange.init(TREE))
    sent = kinds(step, TREE, state, jax.ShapeDtypeStruct((), jnp.uint32))
    assert sent
    assert "reduce-scatter" not in sent


@pytest.mark.parametrize("name", MIXERS)
def test_no_mixer_scatters_a_sum(name):
    mixer = every_method.mixer(name)
    state = jax.eval_shape(mixer.init, TREE)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    sent = set()
    for phase in set(mixer.schedule):

        def step(tree, state, seed, phase=phase):
            return mixer.mix(tree, tree, state, jax.random.key(seed), phase)[:2]

        sent |= kinds(step, TREE, state, seed)
    assert sent
    assert "reduce-scatter" not in sent


def test_the_check_would_see_one():
    def step(x):
        return jax.lax.psum_scatter(x, "workers")

    assert kinds(step, jnp.ones(WORKERS)) == {"reduce-scatter"}

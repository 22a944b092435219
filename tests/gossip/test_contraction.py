"""Messages that lose more than there is are refused; others bring models together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from jaxcomp.mixers import gossip
from tests.tiers import tiers

WORKERS, SIZE = 4, 600
GRAPHS = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}
STARTS = jnp.asarray(np.random.default_rng(0).normal(size=(WORKERS, SIZE)), jnp.float32)


def apart(name, compressor, rounds=200):
    """Distance of the models from their mean after some rounds, over that before."""
    mixer = jaxcomp.make_mixer(
        name, GRAPHS.get(name, "ring"), WORKERS, compressor=compressor
    )
    state = jax.vmap(mixer.init)(STARTS)

    def step(carry, key):
        x, state = carry
        mixed = jax.vmap(
            lambda x, s: mixer.mix(x, jnp.zeros_like(x), s, key, 0), axis_name="workers"
        )(x, state)
        return (x + mixed.updates, mixed.state), None

    keys = jax.random.split(jax.random.key(0), rounds)
    (x, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, keys))((STARTS, state))
    return distance(x) / distance(STARTS)


def distance(x):
    """Of the models from their mean."""
    return float(jnp.linalg.norm(x - jnp.mean(x, axis=0, keepdims=True)))


@pytest.mark.parametrize(
    ("name", "compressor"),
    tiers(
        [
            (name, compressor)
            for name in gossip.REGISTRY
            for compressor in ("qsgd(levels=7)", "qsgd(levels=31)", "terngrad", "eden")
        ],
        lambda case: case[1] == "qsgd(levels=7)" or case[0] == "choco",
    ),
)
def test_models_come_together_or_it_is_refused(name, compressor):
    try:
        ratio = apart(name, compressor)
    except ValueError as error:
        reason = str(error)
    else:
        assert ratio < 1
        return
    assert name in reason
    assert compressor.split("(")[0] in reason or "no compressor" in reason


def test_allowed_models_run_away():
    assert apart("choco(allow=True)", "qsgd(levels=7)") > 1e6

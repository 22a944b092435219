"""A gradient that is sent in parts: the same numbers, in the order of the layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import make_exchange
from jaxcomp.overlap import Cut, overlapped, ready_order
from tests import workers

WORKERS = 4
EXCHANGES = {
    "top_k": ("gather", "top_k(keep=0.1)", "error_feedback"),
    "dgc": ("gather", "dgc_top_k(keep=0.1)", "dgc"),
    "ef21": ("gather", "threshold(v=0.5, cap=0.2)", "ef21"),
    "two_phase": ("two_phase", "sign", "error_feedback"),
    "power_sgd": ("power_sgd(rank=1, min_rate=1)", None, "error_feedback"),
    "exact": ("exact", None, "none"),
}


def exchange_of(name):
    exchange, compressor, memory = EXCHANGES[name]
    return make_exchange(exchange, compressor, memory)


def follow(exchange, mapper, steps=2):
    """What two steps of all workers give: means, what was sent and held, the norms."""
    one = jax.tree.map(lambda x: x[0], workers.gradients(WORKERS))

    def step(state, x):
        out = exchange.average(x, state, jax.random.key(0))
        held = exchange.held(out.state) if exchange.held else ()
        return out.mean, (out.sent, held, out.info), out.state

    inputs = [workers.gradients(WORKERS, seed) for seed in range(steps)]
    found = workers.run(
        step, exchange.init(one), inputs, mapper=mapper, workers=WORKERS
    )
    return [(step.shared, step.own) for step in found]


@pytest.mark.parametrize("name", EXCHANGES)
def test_parts_give_the_same_numbers(name):
    whole = follow(exchange_of(name), "vmap")
    parts = follow(overlapped(exchange_of(name), 3), "vmap")
    for (mean, own), (expected, expected_own) in zip(parts, whole, strict=True):
        jax.tree.map(np.testing.assert_array_equal, mean, expected)
        jax.tree.map(np.testing.assert_array_equal, own[:2], expected_own[:2])
        close = np.testing.assert_allclose
        jax.tree.map(lambda a, b: close(a, b, rtol=1e-5), own[2], expected_own[2])

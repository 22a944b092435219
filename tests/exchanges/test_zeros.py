"""What has no gradient does not move, whatever crosses the workers."""

import jax
import numpy as np
import pytest

from tests.exchanges.matrix import PAIRS, compiled, gradients, steps_of, with_memory
from tests.exchanges.test_guarantees import FIRST
from tests.tiers import tiers

STEPS = 8
# What answers a zero among others with something else: see `mixes` in
# tests/compressors/test_conformance.py. It does so alone, without a memory.
MIXES = ("power_sgd", "budget")


def workers_of(exchange: str) -> int:
    return 4 if "HOST" in exchange else 3  # as in test_guarantees.py: one program


def is_quick(case: tuple) -> bool:
    exchange, compressor = case
    return FIRST[exchange] == compressor


def with_frozen_parts(workers: int, seed: int) -> dict[str, jax.Array]:
    """A tensor that is frozen, and dead rows of another one."""
    tree = gradients(workers, seed)
    return {"kernel": tree["kernel"].at[:, ::2].set(0), "bias": 0 * tree["bias"]}


@pytest.mark.parametrize(("exchange", "compressor"), tiers(PAIRS, is_quick))
def test_what_is_frozen_stays_put(exchange, compressor):
    workers = workers_of(exchange)
    inner = compiled(exchange, compressor, workers)
    steps = steps_of(inner, workers, STEPS, lambda i: with_frozen_parts(workers, i))
    for step in steps:
        for tree in (step.mean, step.sent):
            np.testing.assert_array_equal(tree["bias"], 0)
        if compressor != "sign" and not exchange.startswith(MIXES):
            np.testing.assert_array_equal(step.mean["kernel"][::2], 0)
    assert any(np.any(step.mean["kernel"][1::2]) for step in steps)


def test_a_frozen_momentum_votes_for_nothing():
    exchange = with_memory(compiled("majority_vote", None, 3), "local_momentum")
    for step in steps_of(exchange, 3, STEPS, lambda i: with_frozen_parts(3, i)):
        np.testing.assert_array_equal(step.mean["bias"], 0)
        np.testing.assert_array_equal(step.mean["kernel"][::2], 0)

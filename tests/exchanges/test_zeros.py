"""What has no gradient does not move, whatever crosses the workers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.types import is_clock
from tests import every_method
from tests.exchanges.matrix import (
    MEMORIES,
    PAIRS,
    compiled,
    gradients,
    steps_of,
    with_memory,
)
from tests.exchanges.test_guarantees import FIRST
from tests.tiers import tiers
from tests.workers import one_of

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


# --- A step of zeros changes nothing --------------------------------------------------


def along(steps, tree):
    """What arrived after the first step, along what was given."""
    mean = tree["kernel"].mean(axis=0)
    return float(sum(np.sum(step.mean["kernel"] * mean) for step in steps[1:]))


def numbers_of(state):
    """What a state holds beside clocks."""
    nodes = jax.tree.leaves(state, is_leaf=is_clock)
    return [np.asarray(x) for x in nodes if not is_clock(x)]


FEEDBACK = "error_feedback(allow=True)"
# One that chooses once only, at step 0.
ONCE = ("budget(bits_per_step=6000, ladder=[sign, block_scaled(4)])", "sign")


@pytest.mark.parametrize(
    ("exchange", "compressor", "kept"),
    tiers(
        [
            *[(*pair, FEEDBACK) for pair in (*FIRST.items(), ONCE)],
            *[("gather", FIRST["gather"], kept) for kept in MEMORIES],
        ],
        lambda case: (
            case[0].startswith(("power_sgd", "budget", "two_phase("))
            and case[:2] != ONCE
        ),
    ),
)
def test_training_goes_on_after_a_step_of_zeros(exchange, compressor, kept):
    """Nothing is kept of it, and what comes later arrives.

    Also where the first and the last rows and columns are always zero.
    """
    workers = workers_of(exchange)
    built = compiled(exchange, compressor, workers)
    built = with_memory(built, kept) if built.lawful else built
    tree = jax.tree.map(jnp.zeros_like, gradients(workers, 0))
    inside = (slice(None), slice(3, -2), slice(3, -2))
    tree["kernel"] = (
        tree["kernel"].at[inside].set(gradients(workers, 0)["kernel"][inside])
    )
    usual = steps_of(built, workers, STEPS, lambda i: tree)
    idle = jax.tree.map(jnp.zeros_like, tree)
    late = steps_of(built, workers, STEPS, lambda i: tree if i else idle)
    for x, first in zip(
        numbers_of(late[0].state), numbers_of(built.init(one_of(tree))), strict=True
    ):
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        np.testing.assert_array_equal(x, 0 * x if is_float else first)
    assert along(late, tree) > 0.6 * along(usual, tree) > 0


# In its first rounds `stale_hypercube` averages over the few that it has heard of.
MIXERS = [name for name in every_method.MIXERS if name != "stale_hypercube"]


@pytest.mark.parametrize("name", tiers(MIXERS, ("choco", "local_sgd").__contains__))
def test_models_go_on_after_rounds_of_zeros(name):
    """Rounds of all phases: they move no model, and leave nothing behind."""
    mixer = every_method.mixer(name)
    cycle = 2 * len(mixer.schedule)
    given = gradients(every_method.WORKERS, 0)

    def run(update, start):
        x = jax.tree.map(jnp.ones_like, update)
        state = mixer.init(x)
        idle = jax.tree.map(jnp.zeros_like, update)
        for i in range(start, 2 * cycle):
            told, key = update if i >= cycle else idle, jax.random.key(i)
            mixed = mixer.mix(x, told, state, key, mixer.phase(i))
            x, state = jax.tree.map(jnp.add, x, mixed.updates), mixed.state
        return x

    pair = jax.vmap(lambda u: (run(u, 0), run(u, cycle)), axis_name="workers")
    for late, usual in zip(*map(jax.tree.leaves, jax.jit(pair)(given)), strict=True):
        if name == "ecd_psgd":  # extrapolates by the number of the step
            late, usual = late.mean(axis=0), usual.mean(axis=0)
        np.testing.assert_allclose(late, usual, rtol=1e-5, atol=1e-5)

"""What every exchange does at the edges of numbers, and of what a tree may be."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, exchanges, make_mixer
from jaxcomp.core.trees import spec_of
from jaxcomp.exchanges import REGISTRY
from jaxcomp.mixers import local
from tests.every_method import ALIKE as MIX_ALIKE
from tests.every_method import MIXERS
from tests.exchanges.matrix import (
    FIRST,
    MEMORIES,
    PAIRS,
    as_program,
    average,
    close,
    compiled,
    few_workers,
    gradients,
    name_of,
    steps_of,
    with_memory,
)
from tests.tiers import tiers

# They sum and report by what `gather`, `exact` and `two_phase` do it by.
ALIKE = {
    "aligned_psum",
    "hierarchical(per_host=HOST)",
    "simulated",
    "two_phase(server_feedback=True)",
}


def is_quick(case):
    """One compressor for each exchange that goes a way of its own."""
    return case in FIRST.items() and case[0] not in ALIKE


def test_every_exchange_is_here():
    assert {name_of(exchange) for exchange, _ in PAIRS} == set(REGISTRY)


def take(exchange, compressor, tree, count=1):
    """Steps on a tree with a leading worker axis that stands still."""
    workers = few_workers(exchange)
    built = compiled(exchange, compressor, workers)
    return steps_of(built, workers, count, lambda i: tree)


BESIDE = {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2)}


def for_all(tree, workers):
    """The same tree on all workers."""
    return jax.tree.map(lambda x: np.stack([x] * workers), tree)


def mixed_tree(exchange):
    """Gradients, a scalar, and a leaf without elements."""
    workers = few_workers(exchange)
    return {**gradients(workers, 0), **for_all(BESIDE, workers)}


# --- Numbers at the ends of their range -----------------------------------------------


@functools.cache
def reports(exchange, compressor, power):
    """`Info` of two steps whose gradients are scaled by 2^power.

    At step 0 `budget` chooses; what it chose it sends at step 1.
    """
    tree = jax.tree.map(lambda x: np.ldexp(x, power), mixed_tree(exchange))
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


@pytest.mark.parametrize(("exchange", "compressor"), tiers(WITH_SCALE, is_quick))
def test_a_mean_in_float16_does_not_overflow(exchange, compressor):
    """The sum of the workers' gradients does."""
    largest = float(jnp.finfo(jnp.float16).max)
    draws = np.random.default_rng(0).uniform(0.6, 0.9, (few_workers(exchange), 10, 9))
    [step] = take(exchange, compressor, {"kernel": np.float16(draws * largest)})
    assert step.mean["kernel"].dtype == np.float16
    assert np.isfinite(step.mean["kernel"]).all()


# --- Leaves of which nothing is lost --------------------------------------------------

LOSING_LITTLE = ("svd(rank=4)", "none", "top_k(keep=0.6)", "cast(dtype='bfloat16')")
WITH_ARGUMENTS = {
    "budget": "budget(bits_per_step=20000, ladder=[svd(4), sign])",
    "hierarchical": "hierarchical(per_host=1)",
    "power_sgd": "power_sgd(rank=2, min_rate=1)",
}
SMALL = {"half": (9,), "pair": (2,), "one": (), "tall": (100, 2)}


@pytest.mark.parametrize(
    ("exchange", "compressor", "workers"),
    tiers(
        itertools.product(REGISTRY, LOSING_LITTLE, [1, 2]),
        # The others compress tensors as `gather` does, or say that they lose.
        lambda case: (
            case[1:] == (LOSING_LITTLE[0], 2) and case[0] in ("gather", "two_phase")
        ),
    ),
)
def test_what_is_called_lossless_arrives_as_it_was_given(exchange, compressor, workers):
    """Whatever shape the exchange gives to it."""
    rng = np.random.default_rng(0)
    tree = {
        name: jnp.asarray(rng.normal(size=(workers, *shape)), jnp.float32)
        for name, shape in SMALL.items()
    }
    tree["half"] = tree["half"].astype(jnp.bfloat16)
    one = jax.tree.map(lambda x: x[0], tree)
    try:
        built = exchanges.make(WITH_ARGUMENTS.get(exchange) or exchange, compressor)
        built.init(one)
    except ValueError:
        return  # refused
    [step] = steps_of(as_program(built), workers, 1, lambda i: tree)
    leaves = zip(*map(jax.tree.leaves, (step.mean, step.sent, step.given)), strict=True)
    for leaf, delta in zip(leaves, built.contraction(one), strict=True):
        if delta == 1:
            mean, sent, given = (np.asarray(x, np.float32) for x in leaf)
            tolerance = 2.0**-8 if leaf[0].dtype == jnp.bfloat16 else 2e-5
            close(sent, given, 2e-5)
            close(mean, average(given), tolerance)


# --- Trees with little in them --------------------------------------------------------

EMPTY = {"nothing": {}, "no_elements": np.zeros((0, 3), np.float32)}


@pytest.mark.parametrize(
    ("exchange", "compressor"), tiers(PAIRS, lambda case: case in FIRST.items())
)
def test_of_nothing_nothing_is_sent(exchange, compressor):
    """With no memory that the exchange may have."""
    workers = few_workers(exchange)
    inner, pairs = compiled(exchange, compressor, workers), []
    for spec in MEMORIES:
        with contextlib.suppress(SpecError):  # this pair is refused
            pairs.append(with_memory(inner, spec))
    for built in pairs:
        steps = steps_of(built, workers, 2, lambda i: for_all(EMPTY, workers))
        assert spec_of(steps[1].mean) == spec_of(EMPTY)
        assert steps[1].info.gradient_error.tolist() == [0] * workers
        assert steps[1].info.extra.keys() == set(built.figures)


GRAPHS = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}
WHOLE = {"d_psgd", "stale_hypercube"}  # send models as they are


def mixer_of(name):
    """On four workers; of a local method most fragments are empty."""
    if name in local.REGISTRY:
        spec = f"{name}(h=4, fragments=4)"
        return make_mixer(spec, exchange="two_phase", compressor="sign")
    compressor = "none" if name in WHOLE else "sign"
    return make_mixer(name, GRAPHS.get(name, "ring"), 4, compressor=compressor)


LITTLE = {**BESIDE, "large": np.ones(50, np.float32)}


@pytest.mark.parametrize(
    ("name", "model"),
    tiers(
        itertools.product(MIXERS, [EMPTY, LITTLE]),
        lambda case: case[1] is EMPTY or case[0] not in MIX_ALIKE,
    ),
)
def test_mixers_of_models_with_little_in_them(name, model):
    mixer = mixer_of(name)

    def run(update):
        x, state = model, mixer.init(model)
        for number in mixer.schedule:
            updates = jax.tree.map(lambda x: update * x, x)
            mixed = mixer.mix(x, updates, state, jax.random.key(0), number)
            x, state = jax.tree.map(jnp.add, x, mixed.updates), mixed.state
        return x

    models = jax.jit(jax.vmap(run, axis_name="workers"))(jnp.arange(4.0))
    assert spec_of(models) == spec_of(for_all(model, 4))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(models))

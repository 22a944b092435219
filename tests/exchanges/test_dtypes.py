"""A leaf of each type of numbers with fractions: right, or refused by one message."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, compressors, exchanges
from jaxcomp.mixers import gossip
from tests import every_method
from tests.exchanges.matrix import (
    FIRST,
    MEMORIES,
    as_program,
    average,
    close,
    few_workers,
    steps_of,
    with_memory,
)
from tests.tiers import tiers

Z = {"w": jnp.ones((8, 6), jnp.complex64)}
REAL = r"w is of complex64, and .* computes with real numbers.* 'exact'"


def test_what_computes_with_real_numbers_says_so():
    """Not one of them sees the real part alone, at the start or in a later step."""
    pairs = [("gather", name) for name in compressors.REGISTRY if name != "compose"]
    pairs += [("two_phase", "none"), ("simulated", "none")]
    built = [exchanges.make(*pair) for pair in pairs]
    built += [every_method.exchange(n) for n in exchanges.REGISTRY if n != "exact"]
    for exchange in built:
        with pytest.raises(SpecError, match=REAL):
            with_memory(exchange, "local_momentum").init(Z)
        state = exchange.init({"w": jnp.ones((8, 6))})
        with pytest.raises(SpecError, match=REAL):
            exchange.average(Z, state, jax.random.key(0))


@pytest.mark.parametrize("name", gossip.REGISTRY)
def test_gossip_mixes_real_numbers(name):
    with pytest.raises(SpecError, match=REAL):
        every_method.mixer(name).init(Z)


def as_pairs(tree):
    """Complex numbers as pairs of real ones."""
    return jax.tree.map(lambda z: np.stack([z.real, z.imag], axis=-1), tree)


def drawn(seed):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    return {"w": parts[0] + np.complex64(1j) * parts[1]}


OTHERS = ("dgc(clip=0.5)", "local_momentum(blend=0.5)")


@pytest.mark.parametrize(
    "kept", tiers([*MEMORIES, *OTHERS], ("none", OTHERS[0], MEMORIES[4]).__contains__)
)
def test_exact_takes_a_complex_number_for_a_pair_of_real_ones(kept):
    """So do all memories around it, with what they clip and report."""
    built = as_program(with_memory(exchanges.make("exact"), kept))
    found = steps_of(built, 3, 2, drawn)
    pairs = steps_of(built, 3, 2, lambda seed: as_pairs(drawn(seed)))
    for step, expected in zip(found, pairs, strict=True):
        assert step.mean["w"].dtype == np.complex64
        close(as_pairs(step.mean), expected.mean)
        close(as_pairs(step.sent), expected.sent)
        close(step.info, expected.info)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("exchange", "compressor"),
    tiers(FIRST.items(), lambda case: case[0] in ("exact", "majority_vote")),
)
def test_real_numbers_of_each_length_keep_their_type(exchange, compressor, dtype):
    """The mean of what is sent and kept is the mean of what was given."""
    workers = few_workers(exchange)
    # Integers of 64 bits meet those of 32 there, as they may in a user's program.
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
        made = functools.partial(np.random.default_rng(0).normal, size=(workers, 10, 9))
        tree = {"w": jnp.asarray(made(), dtype)}
        spec = exchange.replace("HOST", "2")
        built = exchanges.make(spec, compressor or "none")
        if built.lawful:
            built = with_memory(built, "error_feedback(allow=True)")
        [step] = steps_of(as_program(built), workers, 1, lambda i: tree)
        assert step.mean["w"].dtype == step.given["w"].dtype == jnp.dtype(dtype)
        assert np.isfinite(step.mean["w"].astype(np.float64)).all()
        if built.lawful:
            tolerance = max(float(jnp.finfo(dtype).eps), 1e-7) * 8
            given, held = (
                average(x["w"].astype(np.float64)) for x in (step.given, step.held)
            )
            close(step.mean["w"].astype(np.float64) + held, given, tolerance)


def test_what_a_server_owes_of_joined_narrow_tensors_is_wide():
    """It meets the decoded sums, which are in float32, without a promotion."""
    spec = "two_phase(server_feedback=True)"
    built = exchanges.make(spec, "none", "whole_tree")
    tree = {name: jnp.ones((2, 4, 6), "float16") for name in "ab"}
    state = built.init(jax.tree.map(lambda x: x[0], tree))

    def average(x):
        result = built.average(x, state, jax.random.key(0))
        return result.mean, result.state

    mean, after = jax.eval_shape(jax.vmap(average, axis_name="workers"), tree)
    assert {x.dtype for x in jax.tree.leaves(mean)} == {jnp.dtype("float16")}
    assert {x.dtype for x in jax.tree.leaves(after)} == {jnp.dtype("float32")}

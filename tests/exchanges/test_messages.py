"""What each exchange sends, read from the program compiled for real devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import exchanges, make_exchange, wire
from tests.exchanges.matrix import PAIRS
from tests.tiers import tiers
from tests.workers import averaging, compiled

# The collectives of one step, whatever the number of tensors.
KINDS = {
    "aligned_psum": ["all-reduce"],
    "budget": ["all-gather"],
    "exact": ["all-reduce"],
    "gather": ["all-gather"],
    "hierarchical": ["all-reduce", "all-gather", "all-gather"],
    "majority_vote": ["all-to-all", "all-gather"],
    "power_sgd": ["all-reduce", "all-reduce"],
    "shared_scale": ["all-gather", "all-reduce"],
    "simulated": ["all-reduce"],
    "sparse_reduce": ["all-to-all", "all-gather"],
    "two_phase": ["all-to-all", "all-gather"],
}
TREE = {
    "kernel": jax.ShapeDtypeStruct((8, 9), jnp.float32),
    "bias": jax.ShapeDtypeStruct((41,), jnp.float32),
}
SIZE = 20_000
VECTOR = {"w": jax.ShapeDtypeStruct((SIZE,), jnp.float32)}


@functools.cache
def program(exchange, shapes=None):
    """The compiled exchange of TREE by four workers, or of other shapes."""
    shapes = TREE if shapes is None else dict(shapes)
    state = jnp.int32(0), exchange.init(shapes)
    return compiled(averaging(exchange), state, shapes, workers=4)


@functools.cache
def traced(exchange, workers=4, shapes=None):
    """The collectives of VECTOR or of other shapes, without compiling."""
    shapes = VECTOR if shapes is None else dict(shapes)
    return wire.traced_collectives(
        averaging(exchange),
        (jnp.int32(0), exchange.init(shapes)),
        shapes,
        axis="workers",
        workers=workers,
    )


@functools.cache
def method(exchange, compressor):
    spec = exchange.replace("HOST", "2").replace("6000", "20000")
    vote = exchange == "majority_vote"
    memory = "none" if vote else "error_feedback(allow=True)"
    return make_exchange(spec, compressor or "none", memory)


@functools.cache
def without_memory(exchange, compressor):
    """One for all tests, so that they share its programs."""
    return make_exchange(exchange, compressor, "none")


PAIRS = [*PAIRS, ("sparse_reduce(values=cast)", "top_k(keep=0.1)")]
# What a compressor sends is looked at in test_plain.py.
# Each exchange with its first compressor; what servers keep, they send to nobody.
QUICK = {case for case in dict(reversed(PAIRS)).items() if "feedback" not in case[0]}


def test_every_exchange_is_here():
    assert set(KINDS) == set(exchanges.REGISTRY)


@pytest.mark.parametrize(("exchange", "compressor"), tiers(PAIRS, QUICK.__contains__))
def test_the_collectives_of_a_step(exchange, compressor):
    """And what the simulation reports is what real workers send."""
    built = method(exchange, compressor)
    found = wire.collectives(program(built))
    expected = KINDS[exchange.split("(")[0]]
    assert sorted(c.kind for c in found) == sorted(expected)
    simulated = traced(built, shapes=tuple(TREE.items()))
    assert wire.collective_bytes(simulated) == wire.collective_bytes(program(built))


@pytest.mark.parametrize(
    ("exchange", "compressor"),
    [
        ("two_phase", "qsgd(levels=7)"),
        ("two_phase", "sign"),
        ("two_phase", "top_k(keep=0.01)"),
        ("sparse_reduce", "top_k(keep=0.01)"),
        ("sparse_reduce(values=cast)", "random_k(keep=0.01)"),
        ("majority_vote", "none"),
    ],
)
def test_traffic_does_not_grow_with_the_workers(exchange, compressor):
    """Bytes that leave a worker, over (N - 1) / N, are the same for 2 and 8."""
    built = without_memory(exchange, compressor)
    sent = {n: wire.link_bytes(traced(built, n)) * n / (n - 1) for n in (2, 8)}
    assert max(sent.values()) <= 1.1 * min(sent.values()), sent


def test_gathered_traffic_does_grow():
    """The check above can fail."""
    built = without_memory("gather", "sign")
    two, eight = (wire.link_bytes(traced(built, n)) * n / (n - 1) for n in (2, 8))
    assert eight > 3 * two


@pytest.mark.parametrize(
    ("exchange", "compressor", "bits"),
    [
        # Of what a worker hands over: N parts to the owners, and one answer.
        ("two_phase", "sign", 1 + 1 / 4),
        ("two_phase", "qsgd(levels=7)", (4 + 32 / 512) * 5 / 4),
        ("majority_vote", "none", 1.6 * 5 / 4),
        ("shared_scale", "none", 4),  # ceil(log2(2 * 4 + 1)) bits, 8 to a word
        ("sparse_reduce", "top_k(keep=0.01)", 0.01 * 1.25 * (32 + 9) * 5 / 4),
    ],
)
def test_bits_of_an_element(exchange, compressor, bits):
    built = without_memory(exchange, compressor)
    sent = sum(wire.collective_bytes(traced(built)).values())
    assert 0.95 * bits <= sent * 8 / SIZE <= 1.05 * bits


def test_power_sgd_sends_its_factors_and_the_small_tensors():
    built = make_exchange("power_sgd(rank=1, min_rate=1)", memory="none")
    floats = 8 + 9 + 41
    found = traced(built, shapes=tuple(TREE.items()))
    assert wire.collective_bytes(found) == {"all-reduce": 4 * floats}


def test_a_host_sends_one_compressed_tree():
    """Of 2 hosts with 2 workers each, every worker sends its half of the tree."""
    built = make_exchange("hierarchical(per_host=2)", "sign", "none")
    found = wire.collectives(program(built, tuple(VECTOR.items())))
    assert all(c.workers == 2 for c in found)
    between = min(c.nbytes for c in found if c.kind == "all-gather")
    assert between == pytest.approx(SIZE / 2 / 8, abs=12)


def test_parts_of_two_axes():
    """Hosts and their workers as two axes of a mesh give the numbers of one axis."""
    rng = np.random.default_rng(0)
    tree = jnp.asarray(rng.normal(size=(6, 50)), jnp.float32)
    key = jax.random.key(0)

    def mean_of(axis, x):
        exchange = make_exchange(
            "hierarchical(per_host=3)", "top_k(keep=0.1)", "none", axis=axis
        )
        return exchange.average(x, exchange.init(x), key).mean

    one = jax.vmap(lambda x: mean_of("workers", x), axis_name="workers", out_axes=None)
    inner = jax.vmap(lambda x: mean_of(("hosts", "local"), x), axis_name="local")
    two = jax.jit(jax.vmap(inner, axis_name="hosts"))(tree.reshape(2, 3, 50))
    np.testing.assert_array_equal(
        two.reshape(6, 50), np.tile(jax.jit(one)(tree), (6, 1))
    )

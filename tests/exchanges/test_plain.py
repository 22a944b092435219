"""Every compressor, memory and scope with the three plain exchanges; their traffic.

What all exchanges have to do is in test_guarantees.py and test_messages.py.
"""

import contextlib
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import compressors, make_exchange, nbits, wire
from jaxcomp.core.specs import SpecError
from jaxcomp.core.types import Exchange
from jaxcomp.transforms.make import compressor_for
from tests.tiers import STANDS_FOR, tiers
from tests.workers import (
    averaging,
    compiled,
    gradients,
    residual_of,
    resnet20,
    run,
    start,
)

COMPRESSORS = [*compressors.REGISTRY, "top_k(keep=0.1) | qsgd(levels=7)"]
PLAIN = ("aligned_psum", "exact", "gather")
SCOPES = ["whole_tree", "bucketed(bytes=500)", "only_large(min_size=50)"]


@functools.cache
def methods(memory: str) -> list[Exchange]:
    """The plain exchanges with every compressor that they take; each method once."""
    built = {}
    for name, compressor in itertools.product(PLAIN, COMPRESSORS):
        with contextlib.suppress(SpecError):  # this pair is refused
            exchange = make_exchange(name, compressor, memory)
            built[exchange.name] = exchange
    return list(built.values())


# With these, two exchanges go the way that one of them goes.
TWICE = (
    *("aligned_psum(none", "aligned_psum(rotating_slice"),
    *("gather(count_sketch", "gather(none", "gather(random_k"),
)


def is_quick(exchange: Exchange) -> bool:
    """Whether no other compressor stands for this one, and no other exchange."""
    alike = [f"({name}" for name in itertools.chain(*STANDS_FOR.values())]
    return not any(words in exchange.name for words in (*alike, *TWICE))


def test_every_plain_exchange_is_among_the_methods():
    names = " ".join(exchange.name for exchange in methods("none"))
    assert all(name in names for name in PLAIN)
    aligned = sum(compressors.make(name).aligned for name in COMPRESSORS)
    assert len(methods("none")) == 1 + len(COMPRESSORS) + aligned


def average(exchange: Exchange, *trees):
    """The steps of an exchange on simulated workers."""
    workers = len(jax.tree.leaves(trees[0])[0])
    return run(
        averaging(exchange),
        start(exchange, trees[0]),
        list(trees),
        mapper="vmap",
        workers=workers,
    )


def close(a, b, tolerance=1e-5):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        a,
        b,
    )


def mean_over_workers(tree):
    return jax.tree.map(lambda x: x.mean(axis=0), tree)


def two(workers, seed=0):
    """A matrix and a scalar."""
    tree = gradients(workers, seed)
    return {name: tree[name] for name in ("kernel", "scale")}


# The number of workers is a matter of the exchange: other numbers than three for one
# compressor that each exchange takes.
SIMPLE = [make_exchange("exact", memory="none")] + [
    make_exchange(name, "random_k(keep=0.1)", "none")
    for name in ("gather", "aligned_psum")
]


@pytest.mark.parametrize(
    ("exchange", "workers"),
    tiers(
        [(e, n) for e in SIMPLE for n in (1, 5)] + [(e, 3) for e in methods("none")],
        lambda case: case[0] in SIMPLE,
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_the_mean_of_what_is_sent_is_the_mean(exchange, workers):
    tree = two(workers)
    [step] = average(exchange, tree)
    obeys_the_law(exchange, tree, step)


def obeys_the_law(exchange, tree, step):
    sent, _ = step.own
    if exchange.lawful:
        close(step.shared, mean_over_workers(sent))
    for mean, leaf in zip(*map(jax.tree.leaves, (step.shared, tree)), strict=True):
        assert (mean.shape, mean.dtype) == (leaf.shape[1:], leaf.dtype)


def small(seed):
    """Two of the tensors of three workers: programs take long to compile."""
    return two(3, seed)


# Tests of every compressor look at one program for each.
KEEPING = tiers(methods("error_feedback(decay=0.7, allow=True)"), is_quick)


@pytest.mark.parametrize("exchange", KEEPING, ids=lambda e: e.name)
def test_error_feedback_conserves(exchange):
    """sent + kept == gradient + decay * kept before, at every step and worker."""
    trees = [small(seed) for seed in range(3)]
    kept = jax.tree.map(np.zeros_like, trees[0])
    for tree, step in zip(trees, average(exchange, *trees), strict=True):
        obeys_the_law(exchange, tree, step)
        sent, info = step.own
        given = jax.tree.map(lambda g, e: g + np.float32(0.7) * e, tree, kept)
        kept = residual_of(step.state)
        close(jax.tree.map(np.add, sent, kept), given)
        squares = [np.square(k).reshape(3, -1).sum(1) for k in jax.tree.leaves(kept)]
        norm = np.sqrt(np.sum(squares, axis=0))
        np.testing.assert_allclose(info.residual_norm, norm, rtol=1e-4, atol=1e-6)


def test_with_decay_one_nothing_is_lost_over_many_steps():
    """Sum of what arrived + what is kept == sum of all gradients."""
    trees = [two(4, seed) for seed in range(10)]
    steps = average(make_exchange("gather", "top_k(keep=0.05)"), *trees)
    arrived = jax.tree.map(lambda *xs: np.sum(xs, axis=0), *[s.shared for s in steps])
    kept = mean_over_workers(residual_of(steps[-1].state))
    total = jax.tree.map(lambda *xs: np.sum(xs, axis=(0, 1)) / 4, *trees)
    close(jax.tree.map(np.add, arrived, kept), total, tolerance=1e-4)


def test_decay_zero_is_no_memory():
    trees = [two(2, seed) for seed in range(2)]
    with_memory = make_exchange("gather", "sign", "error_feedback(decay=0)")
    without = make_exchange("gather", "sign", "none")
    a, b = average(with_memory, *trees)[1], average(without, *trees)[1]
    close(a.shared, b.shared, tolerance=0)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_obeys_the_law_and_conserves(scope):
    exchange = make_exchange("gather", "sign", scope=scope)
    tree = gradients(4)
    [step] = average(exchange, tree)
    sent, _ = step.own
    close(step.shared, mean_over_workers(sent))
    close(jax.tree.map(np.add, sent, residual_of(step.state)), tree)


def test_gather_against_numpy():
    """Top-k by gather, written with sorting and loops."""
    tree = {name: gradients(3)[name] for name in ("deep", "kernel")}
    [step] = average(make_exchange("gather", "top_k(keep=0.1)", "none"), tree)
    for name, leaf in tree.items():
        flat = np.asarray(leaf).reshape(3, -1)
        expected = np.zeros(flat.shape[1])
        for row in flat:
            for place in np.argsort(-np.abs(row))[: max(1, round(0.1 * row.size))]:
                expected[place] += row[place] / 3
        np.testing.assert_allclose(step.shared[name].ravel(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shared"), [("gather", False), ("aligned_psum", True)]
)
def test_workers_share_places_only_where_they_must(name, shared):
    tree = {"x": jnp.ones((4, 1000))}
    first, second = average(
        make_exchange(name, "random_k(keep=0.1)", "none"), tree, tree
    )
    places = first.own[0]["x"] != 0
    assert (places == places[:1]).all() == shared
    assert (places.sum(axis=1) == 100).all()
    assert (first.shared["x"] != second.shared["x"]).any(), "each step draws anew"


def test_aligned_psum_refuses_what_is_not_aligned():
    with pytest.raises(SpecError, match="random_k") as error:
        make_exchange("aligned_psum", "top_k")
    assert "top_k" in str(error.value)


@pytest.mark.parametrize("name", ["exact", "gather", "aligned_psum"])
def test_low_precision_gradients_keep_their_type_and_lose_nothing(name):
    """A bfloat16 gradient comes back as bfloat16; its residual is float32."""
    tree = jax.tree.map(lambda x: x.astype(jnp.bfloat16), two(2))
    compressor = compressor_for(name, "random_k(keep=0.1)")
    [step] = average(make_exchange(name, compressor), tree)
    assert {m.dtype for m in jax.tree.leaves(step.shared)} == {jnp.dtype(jnp.bfloat16)}
    residual = residual_of(step.state)
    assert {r.dtype for r in jax.tree.leaves(residual)} == {np.dtype(np.float32)}
    wide = jax.tree.map(lambda x: np.asarray(x, np.float32), tree)
    close(jax.tree.map(np.add, step.own[0], residual), wide)


@pytest.mark.parametrize("exchange", KEEPING, ids=lambda e: e.name)
def test_a_worker_with_only_nan_is_seen_by_all(exchange):
    tree = jax.tree.map(lambda x: x.at[1].set(jnp.nan), small(0))
    [step] = average(exchange, tree)
    finite = [np.isfinite(m).all() for m in jax.tree.leaves(step.shared)]
    assert not all(finite)


# --- Traffic ------------------------------------------------------------------------


def program(exchange: Exchange, shapes):
    """The compiled exchange of four workers."""
    state = jnp.int32(0), exchange.init(shapes)
    return compiled(averaging(exchange), state, shapes, workers=4)


def traced(exchange: Exchange):
    """The collectives of the exchange of two short vectors, without compiling."""
    state = jnp.int32(0), exchange.init(SMALL)
    return wire.traced_collectives(
        averaging(exchange), state, SMALL, axis="workers", workers=4
    )


SMALL = {f"w{n}": jax.ShapeDtypeStruct((n,), jnp.float32) for n in (41, 43)}


@functools.cache
def program_small(exchange: Exchange):
    """The exchange of two short vectors; the tests below look at one program."""
    return program(exchange, SMALL)


# To the compiler any message is one of some words.
FEW = ("exact", "aligned_psum(random_k", "gather(sign", "gather(top_k(keep=0.1)")
COMPILED = tiers(
    methods("error_feedback(allow=True)"),
    lambda e: any(f": {words}" in e.name for words in FEW),
)


@pytest.mark.parametrize("exchange", COMPILED, ids=lambda e: e.name)
def test_one_message_a_step_whatever_the_number_of_tensors(exchange):
    kind = "all-gather" if "gather(" in exchange.name else "all-reduce"
    found = wire.collectives(program_small(exchange))
    assert [c.kind for c in found] == [kind]


@pytest.mark.parametrize(
    "exchange",
    tiers(
        [e for e in methods("error_feedback(allow=True)") if "gather(" in e.name],
        is_quick,
    ),
    ids=lambda e: e.name,
)
def test_the_program_sends_the_payload_and_nothing_else(exchange):
    """Bits of the payload, padded to words, are what the traced all-gather moves.

    That of the compiled one is the same: see below.
    """
    codec = compressors.make(re.findall(r"gather\((.*)\)$", exchange.name)[0])
    bits = 0
    for leaf in SMALL.values():
        state = jax.eval_shape(lambda leaf=leaf: codec.init(leaf))
        payload, _ = jax.eval_shape(codec.compress, leaf, state, jax.random.key(0))
        bits += nbits(payload)
    [(kind, sent)] = wire.collective_bytes(traced(exchange)).items()
    assert kind == "all-gather"
    assert bits / 8 <= sent < bits / 8 + 8


@pytest.mark.slow
def test_sign_on_a_resnet20_sends_a_thirtieth():
    """Signs of 269,722 parameters in 65 tensors, scales and padding included."""
    exchange = make_exchange("gather", "sign", memory="none")
    found = program(exchange, resnet20())
    dense = wire.dense_bytes(resnet20())
    assert dense == 4 * 269_722
    assert wire.collective_bytes(found)["all-gather"] <= dense / 30


@pytest.mark.parametrize(
    ("method", "bits"),
    tiers(
        [
            ("top_k(keep=0.001)", 32 + 12.1),
            ("top_k(keep=0.01)", 32 + 8.6),
            ("top_k(keep=0.001) | qsgd(levels=127)", 22),
            ("top_k(keep=0.01) | qsgd(levels=127)", 17),
        ],
        ("top_k(keep=0.001) | qsgd(levels=127)", 22).__eq__,
    ),
)
def test_bits_of_a_kept_value_in_the_compiled_program(method, bits):
    """Value, place, norm of the bucket and padding: all that the all-gather moves."""
    size = 1_000_000
    vector = {"w": jax.ShapeDtypeStruct((size,), jnp.float32)}
    found = program(make_exchange("gather", method, memory="none"), vector)
    sent = wire.collective_bytes(found)["all-gather"]
    kept = 1000 if "0.001" in method else 10_000
    assert sent * 8 <= bits * kept


def test_aligned_psum_sends_values_only():
    exchange = make_exchange("aligned_psum", "random_k(keep=0.1)")
    found = traced(exchange)
    kept = sum(max(1, round(0.1 * leaf.size)) for leaf in SMALL.values())
    assert wire.collective_bytes(found) == {"all-reduce": 4 * kept}


@pytest.mark.parametrize("exchange", COMPILED, ids=lambda e: e.name)
def test_the_traced_figure_is_the_compiled_one(exchange):
    """What the simulation reports is what real workers send."""
    found = wire.collective_bytes(program_small(exchange))
    assert wire.collective_bytes(traced(exchange)) == found

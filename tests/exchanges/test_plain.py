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
from tests import references
from tests.exchanges.matrix import average, close
from tests.tiers import STANDS_FOR, tiers
from tests.workers import (
    averaging,
    gradients,
    residual_of,
    take,
)

COMPRESSORS = [*compressors.REGISTRY, "top_k(keep=0.1) | qsgd(levels=7)"]
PLAIN = ("aligned_psum", "exact", "gather")


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


two = functools.partial(gradients, names=("kernel", "scale"))


def obeys_the_law(exchange, tree, step):
    sent, _ = step.own
    if exchange.lawful:
        close(step.shared, average(sent))
    for mean, leaf in zip(*map(jax.tree.leaves, (step.shared, tree)), strict=True):
        assert (mean.shape, mean.dtype) == (leaf.shape[1:], leaf.dtype)


small = functools.partial(two, 3)


def test_gather_against_numpy():
    """Top-k by gather, written with sorting."""
    tree = {name: gradients(3)[name] for name in ("deep", "kernel")}
    [step] = take(make_exchange("gather", "top_k(keep=0.1)", "none"), tree)
    for name, leaf in tree.items():
        rows, k = np.asarray(leaf), max(1, round(0.1 * leaf[0].size))
        expected = np.mean([references.top_k(row, k) for row in rows], axis=0)
        np.testing.assert_allclose(step.shared[name], expected, atol=1e-6)


# Tests of every compressor look at one program for each.
KEEPING = tiers(methods("error_feedback(decay=0.7, allow=True)"), is_quick)


@pytest.mark.parametrize("exchange", KEEPING, ids=lambda e: e.name)
def test_error_feedback_conserves(exchange):
    """sent + kept == gradient + decay * kept before, at every step and worker."""
    trees = [small(seed) for seed in range(3)]
    kept = jax.tree.map(np.zeros_like, trees[0])
    for tree, step in zip(trees, take(exchange, *trees), strict=True):
        obeys_the_law(exchange, tree, step)
        sent, info = step.own
        given = jax.tree.map(lambda g, e: g + np.float32(0.7) * e, tree, kept)
        kept = residual_of(step.state)
        close(jax.tree.map(np.add, sent, kept), given)
        squares = [np.square(k).reshape(3, -1).sum(1) for k in jax.tree.leaves(kept)]
        norm = np.sqrt(np.sum(squares, axis=0))
        np.testing.assert_allclose(info.residual_norm, norm, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shared"), [("gather", False), ("aligned_psum", True)]
)
def test_workers_share_places_only_where_they_must(name, shared):
    tree = {"x": jnp.ones((4, 1000))}
    first, second = take(make_exchange(name, "random_k(keep=0.1)", "none"), tree, tree)
    places = first.own[0]["x"] != 0
    assert (places == places[:1]).all() == shared
    assert (places.sum(axis=1) == 100).all()
    assert (first.shared["x"] != second.shared["x"]).any(), "each step draws anew"


def test_aligned_psum_refuses_what_is_not_aligned():
    with pytest.raises(SpecError, match="random_k") as error:
        make_exchange("aligned_psum", "top_k")
    assert "top_k" in str(error.value)


# --- Traffic ------------------------------------------------------------------------


def traced(exchange: Exchange):
    """The collectives of the exchange of two short vectors, without compiling."""
    state = jnp.int32(0), exchange.init(SMALL)
    return wire.traced_collectives(
        averaging(exchange), state, SMALL, axis="workers", workers=4
    )


SMALL = {f"w{n}": jax.ShapeDtypeStruct((n,), jnp.float32) for n in (41, 43)}


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


def test_aligned_psum_sends_values_only():
    exchange = make_exchange("aligned_psum", "random_k(keep=0.1)")
    found = traced(exchange)
    kept = sum(max(1, round(0.1 * leaf.size)) for leaf in SMALL.values())
    assert wire.collective_bytes(found) == {"all-reduce": 4 * kept}

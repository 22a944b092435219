"""Whatever is put together is right, or refused: random compositions of all parts.

COMPOSITIONS=5000 draws so many instead of 200, most of them in the slow tier. The draws
are the same every time.
"""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jaxcomp import compressors, exchanges, make_exchange, memory, parallel, scope
from jaxcomp.core.types import Exchange
from jaxcomp.transforms.make import compressor_for
from tests.exchanges.matrix import mapped
from tests.tiers import tiers

DRAWS = int(os.environ.get("COMPOSITIONS", "200"))
PARTS = 8  # tests among which the draws are divided
STEPS = 50

# Arguments that suit small tensors; whatever is not named here is drawn as it is.
EXCHANGES = {
    "budget": ["budget(bits_per_step=30000, ladder=[sign, cast], every=7)"],
    "hierarchical": ["hierarchical(per_host=1)", "hierarchical(per_host=2)"],
    "power_sgd": ["power_sgd(rank=1, min_rate=1)"],
    "two_phase": ["two_phase", "two_phase(server_feedback=True)"],
}
COMPRESSORS = {
    "adaptive_threshold": ["adaptive_threshold(cap=0.5)"],
    "block_top_k": ["block_top_k(keep=0.25)"],
    "qsgd": ["qsgd(levels=1)", "qsgd(levels=7, damped=True)"],
    "threshold": ["threshold(v=0.5, cap=0.5)"],
    **{
        name: [f"{name}(keep=0.3)"]
        for name in ("dgc_top_k", "random_k", "rotating_slice", "top_k")
    },
}
SCOPES = {
    "bucketed": ["bucketed(bytes=64)"],
    "only_large": ["only_large(min_size=8)"],
}
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (16, 16)]
DTYPES = ["float32", "float32", "bfloat16", "float16"]


def one_of(registry: Any, specs: dict[str, list[str]]) -> Any:
    """Any member of a registry."""
    names = st.sampled_from(sorted(registry))
    return names.flatmap(lambda name: st.sampled_from(specs.get(name, [name])))


def up_to_two(specs: Any) -> Any:
    return st.lists(specs, min_size=1, max_size=2).map(" | ".join)


LEAVES = st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(
        st.sampled_from("abc"), inner, min_size=1, max_size=3
    ),
    max_leaves=5,
)
TREES = st.integers(0, 9).flatmap(lambda n: st.just({}) if n == 9 else NESTED)


class Composition(NamedTuple):
    """What is drawn."""

    exchange: str
    compressor: str
    memory: str
    scope: str
    workers: int
    tree: Any  # of (shape, dtype)


COMPOSITIONS = st.builds(
    Composition,
    one_of(exchanges.REGISTRY, EXCHANGES),
    up_to_two(one_of(compressors.REGISTRY, COMPRESSORS)),
    up_to_two(one_of(memory.REGISTRY, {})),
    one_of(scope.REGISTRY, SCOPES),
    st.integers(1, 4),
    TREES,
)


def gradients(drawn: Composition) -> Any:
    """With a leading worker axis; heavy-tailed, and never near nothing at all."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> jax.Array:
        shape, dtype = leaf
        values = rng.standard_t(4, size=(drawn.workers, *shape)) + 0.5
        return jnp.asarray(values, dtype)

    return jax.tree.map(draw, drawn.tree, is_leaf=lambda node: type(node) is tuple)


def follow(exchange: Exchange, tree: Any, workers: int) -> tuple[Any, Any, Any]:
    """Of 50 steps of one gradient: means, and the mean of what was sent and held."""
    one = jax.tree.map(lambda x: x[0], tree)
    state = parallel.spread(exchange.init(one), parallel.setup(workers, "vmap"))
    axes = parallel.axes(state)
    average_of = mapped(exchange, workers, axes)

    def average(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.mean(x.astype(jnp.float32), axis=0), tree)

    def step(state: Any, key: Any) -> Any:
        result = average_of(state, tree, key)
        held = None
        if exchange.held is not None:
            of_workers = jax.vmap(exchange.held, in_axes=(axes,), axis_size=workers)
            held = average(of_workers(result.state))
        return result.state, (result.mean, average(result.sent), held)

    keys = jax.random.split(jax.random.key(0), STEPS)
    run = jax.jit(lambda s: jax.lax.scan(step, s, keys)[1])
    means, sent, held = jax.tree.map(np.asarray, run(state))
    return jax.tree.map(lambda m: m.astype(np.float32), means), sent, held


def flat(tree: Any) -> np.ndarray:
    """[steps, elements]"""
    rows = [np.reshape(x, (STEPS, -1)) for x in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=1) if rows else np.zeros((STEPS, 0))


def check(
    exchange: Exchange, drawn: Composition, means: Any, sent: Any, held: Any
) -> None:
    """The laws, of what `follow` returns."""
    tree = gradients(drawn)
    whole = np.concatenate(
        [
            np.zeros(0),
            *(
                np.mean(np.asarray(x, np.float32), axis=0).reshape(-1)
                for x in jax.tree.leaves(tree)
            ),
        ]
    )
    arrived = flat(means)
    assert np.isfinite(arrived).all(), "not finite"
    assert jax.tree.structure(means) == jax.tree.structure(tree)
    if not exchange.lawful:
        assert np.abs(arrived).max(initial=0) <= 1, "not a sign"
        return
    kept = np.zeros_like(arrived) if held is None else flat(held)
    # The mean has the gradient's own type, what is sent and held has not.
    rough = any(x.dtype != jnp.float32 for x in jax.tree.leaves(tree))
    size = np.abs(arrived).max(initial=1.0) + np.abs(kept).max(initial=0.0)
    close = {"rtol": 0, "atol": (2e-2 if rough else 1e-4) * size}
    change = np.zeros_like(kept)
    # What owners keep is charged to nobody; a memory's is not told apart from it.
    if exchange.keeper is None:
        change = np.diff(kept, axis=0, prepend=0)
    if exchange.keeper is None or "server_feedback" not in drawn.exchange:
        np.testing.assert_allclose(arrived, flat(sent) - change, err_msg="law", **close)
    if exchange.keeper and exchange.momentum is None and "ef21" not in exchange.keeper:
        total = np.arange(1, STEPS + 1)[:, None] * whole
        close["atol"] *= 10
        np.testing.assert_allclose(
            np.cumsum(arrived, axis=0) + kept, total, err_msg="conservation", **close
        )
    if whole.size:
        ratio = np.sum(arrived, axis=0) @ whole / (STEPS * (whole @ whole))
        least, most = (0.0 if exchange.keeper else -1.0), 10.5  # dgc: 1 / (1 - m)
        assert least <= ratio <= most, f"arrived / given is {ratio}"


def parts_named(message: str, drawn: Composition) -> int:
    """How often an error speaks of a drawn part; of two of one name, of each."""
    first = message.split("\n")[0]
    specs = [drawn.exchange, *drawn.compressor.split(" | "), *drawn.memory.split(" | ")]
    names = {spec.split("(")[0] for spec in [*specs, drawn.scope]}
    return sum(first.count(name) for name in [*names, "workers"])


@pytest.mark.parametrize("part", tiers(range(PARTS), lambda part: part < PARTS / 4))
def test_what_is_put_together_is_right_or_refused(part):
    accepted, refused = [], []

    @seed(part)
    @settings(
        max_examples=DRAWS // PARTS,
        phases=[Phase.generate],  # a program takes too long to look for a smaller one
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(COMPOSITIONS)
    def draws(drawn: Composition) -> None:
        try:
            # One that takes no compressor would refuse all of them.
            used = compressor_for(drawn.exchange, drawn.compressor)
            exchange = make_exchange(drawn.exchange, used, drawn.memory, drawn.scope)
            steps = follow(exchange, gradients(drawn), drawn.workers)
        except ValueError as error:
            refused.append(drawn)
            if parts_named(str(error), drawn) < 2:
                raise
        else:
            accepted.append(drawn)
            check(exchange, drawn, *steps)

    draws()
    assert accepted, "everything is refused"
    assert refused, "nothing is refused"

"""Memories around each other and around every exchange: right, or refused."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, exchanges, make_exchange, memory, parallel
from jaxcomp.core.types import Exchange
from tests.exchanges.matrix import mapped
from tests.tiers import tiers
from tests.workers import take

WORKERS, M = 4, 0.9
BETA = np.float32(M)
SIZES = {"bias": (5,), "kernel": (20, 10)}
# Arguments that some exchanges cannot do without.
SPECS = {
    "hierarchical": "hierarchical(per_host=2)",
    "budget": "budget(bits_per_step=9000, ladder=[sign, cast])",
}


def inputs(steps: int) -> list[dict[str, jax.Array]]:
    rng = np.random.default_rng(2)
    return [
        {
            name: jnp.asarray(rng.normal(size=(WORKERS, *shape)), jnp.float32)
            for name, shape in SIZES.items()
        }
        for _ in range(steps)
    ]


@functools.cache
def build(exchange: str, compressor: str, spec: str, **more: Any) -> Exchange | None:
    """None where it is refused."""
    try:
        built = make_exchange(SPECS.get(exchange, exchange), compressor, spec, **more)
        built.init({n: jnp.zeros(shape) for n, shape in SIZES.items()})
    except ValueError:
        return None
    return built


# --- Memories around memories --------------------------------------------------------


@functools.cache
def arrived_of_given(name: str, spec: str, steps: int = 200) -> float:
    """Of a constant gradient, along it; one value for one method, `name`."""
    exchange = make_exchange("gather", "top_k(keep=0.25)", spec)
    assert exchange.name == name
    given = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24)), jnp.float32)
    state = parallel.spread(exchange.init(given[0]), parallel.setup(2, "vmap"))
    axes = parallel.axes(state)
    average_of = mapped(exchange, 2, axes)

    def step(state: Any, key: Any) -> Any:
        result = average_of(state, given, key)
        return result.state, result.mean

    keys = jax.random.split(jax.random.key(0), steps)
    _, means = jax.jit(lambda s: jax.lax.scan(step, s, keys))(state)
    whole = np.mean(given, axis=0)
    return float(np.mean(means, axis=0) @ whole / (whole @ whole))


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(memory.REGISTRY, repeat=2))
)
def test_a_memory_behind_a_memory_is_right_or_refused(first, second):
    """What is kept twice arrives twice, and what that leaves behind again: 1e10."""
    spec = f"{first} | {second}"
    built, reason = None, ""
    try:
        built = make_exchange("gather", "top_k(keep=0.25)", spec)
    except SpecError as error:
        reason = str(error).splitlines()[0]
    if built is None:
        assert first in reason
        assert second in reason
        return
    # What is not kept is lost, if it is biased; a momentum of dgc makes 1 / (1 - m).
    least = 0.5 if built.keeper else 0
    assert least < arrived_of_given(built.name, spec) < 1 / (1 - M)


def test_a_keeper_around_an_owner_that_keeps_is_lawful():
    """DoubleSqueeze: the worker keeps its own error, the owner that of the sum."""
    exchange = "two_phase(server_feedback=True)"
    assert build(exchange, "sign", "error_feedback") is not None
    assert build(exchange, "sign", "ef21") is None


# --- What cannot be kept -------------------------------------------------------------


KEEPERS = ("error_feedback", "dgc", "ef21", "ef21_momentum")


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_loss_without_a_bound_is_refused(keeper):
    """At the first sight of the tensors, with the ways out."""
    tree = {"b": jnp.zeros(3), "w": jnp.zeros((40, 30))}
    exchange = make_exchange("gather", "qsgd(levels=7)", keeper)
    with pytest.raises(ValueError, match=r"of w, with 1200 elements.*allow=True"):
        exchange.init(tree)
    exchange.init({"b": jnp.zeros(3)})  # of few elements qsgd is a contraction
    make_exchange("gather", "qsgd(levels=7, damped=True)", keeper).init(tree)
    make_exchange("gather", "qsgd(levels=7)", f"{keeper}(allow=True)").init(tree)
    make_exchange("gather", "qsgd(levels=7)", keeper, dense=True).init(tree)


def test_an_owner_keeps_no_loss_without_a_bound():
    exchange = exchanges.make("two_phase(server_feedback=True)", "qsgd(levels=7)")
    with pytest.raises(ValueError, match="leave out server_feedback"):
        exchange.init({"w": jnp.zeros((40, 30))})


# --- Momenta around exchanges --------------------------------------------------------


MOMENTA = ("dgc", "dgc(nesterov=True)", "local_momentum", "shared_momentum")


def momenta_of(spec: str, trees: list[dict[str, np.ndarray]]) -> Any:
    """What momentum SGD makes of the gradients: means, and the last momenta."""
    u = {name: np.zeros_like(g) for name, g in trees[0].items()}
    means = []
    for tree in trees:
        for name, g in tree.items():
            if "nesterov" in spec:
                u[name] = BETA * (u[name] + g)
            elif "dgc" in spec:
                u[name] = BETA * u[name] + g
            else:
                u[name] = BETA * u[name] + (1 - BETA) * g
        out = {n: u[n] + tree[n] for n in u} if "nesterov" in spec else u
        means.append({name: x.mean(axis=0) for name, x in out.items()})
    return means, u


@pytest.mark.parametrize(
    ("exchange", "spec"),
    tiers(
        itertools.product(exchanges.REGISTRY, MOMENTA),
        lambda case: case[0] == "gather" or case == ("two_phase", "dgc"),
    ),
)
def test_what_arrives_whole_gets_momentum_sgd(exchange, spec):
    """Of a small tensor beside a large one that is compressed, and of both whole.

    Most exchanges send what is whole as `gather` does, or as `two_phase` does.
    """
    trees = inputs(steps=4)
    expected, momenta = momenta_of(spec, jax.tree.map(np.asarray, trees))
    cases = (("top_k(keep=0.05)", "only_large(min_size=50)"), ("none", "per_leaf"))
    for compressor, scope in cases:
        # What is whole is so in front of the memory.
        bare = build(exchange, compressor, "none", scope=scope)
        built = build(exchange, compressor, spec, scope=scope)
        if bare is None or built is None:
            continue
        specs = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in SIZES.items()}
        deltas = dict(zip(specs, bare.contraction(specs), strict=True))
        whole = [name for name, delta in deltas.items() if delta == 1]
        assert whole or exchange in ("majority_vote", "shared_scale")
        steps = take(built, *trees)
        for step, mean in zip(steps, expected, strict=True):
            for name in whole:
                np.testing.assert_allclose(step.shared[name], mean[name], atol=2e-5)
        kept = steps[-1].state[1].momentum
        for name in whole if spec != "shared_momentum" else ():
            np.testing.assert_allclose(kept.value[name], momenta[name], atol=2e-5)


MASKED = ("exact", "gather", "hierarchical", "sparse_reduce", "two_phase")


@pytest.mark.parametrize(
    ("exchange", "compressor"),
    tiers(
        itertools.product(
            exchanges.REGISTRY, ["top_k(keep=0.05)", "random_k(keep=0.05)"]
        ),
        # One with a host of several, two that charge owners, and `gather` for the rest.
        lambda case: "top_k" in case[1] and case[0] in MASKED,
    ),
)
def test_masking_clears_what_went_out(exchange, compressor):
    """And nothing else: neither what stayed, nor what is charged for others."""
    built = build(exchange, compressor, "dgc", scope="only_large(min_size=50)")
    if built is None:
        return
    trees = inputs(steps=3)
    steps = take(built, *trees)
    old = np.zeros((WORKERS, *SIZES["kernel"]), np.float32)
    for tree, step in zip(trees, steps, strict=True):
        u = np.asarray(step.state[1].momentum.value["kernel"])
        unmasked = BETA * old + np.asarray(tree["kernel"])
        cleared = u == 0
        np.testing.assert_allclose(u[~cleared], unmasked[~cleared], rtol=1e-5)
        if built.chooses({n: trees[0][n][0] for n in SIZES})[1]:
            arrived = np.asarray(step.shared["kernel"]) != 0
            np.testing.assert_array_equal(arrived, arrived & cleared.any(axis=0))
            # A host sends so many, an owner's part at least one.
            assert cleared.mean(axis=(1, 2)).max() <= 3 * 0.05
        else:
            assert not cleared.any()
        old = u

"""Workers that start from different models come together, whatever they send."""

import functools

import jax
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import parallel
from jaxcomp.mixers import gossip, local
from tests.every_method import MIXERS, WORKERS, mixer, trees
from tests.gossip.runs import flat, spread_of
from tests.tiers import tiers

STEPS = 400
STARTS = trees(WORKERS)
CASES = [
    *((name, "none") for name in gossip.REGISTRY),
    *((name, "top_k(keep=0.5)") for name in ("choco", "choco_overlapped")),
]


@functools.cache
def link(name, compressor):
    return jaxcomp.mixing(mixer(name, compressor), seed=0)


def talk_alone(name, compressor):
    """The models after each step of a worker that learns nothing."""
    tx = link(name, compressor)

    def run(start, state):
        def step(carry, _):
            x, state = carry
            nothing = jax.tree.map(jax.numpy.zeros_like, x)
            updates, state = tx.update(nothing, state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), x

        return jax.lax.scan(step, (start, state), None, length=STEPS)[1]

    return run


@functools.cache
def talk(name, compressor):
    """The same of all workers, as one program."""
    return jax.jit(jax.vmap(talk_alone(name, compressor), axis_name="workers"))


def check(models):
    """They end where their mean was, and it has not moved."""
    models = flat(models, 2)
    start = flat(STARTS, 1)
    apart = spread_of(np.concatenate([start[None], models.swapaxes(0, 1)]))
    assert apart[-1] < 1e-4 * apart[0]
    np.testing.assert_allclose(models[:, -1].mean(0), start.mean(0), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "compressor", "named"),
    tiers(
        [
            *((*case, named) for case in CASES for named in (True, False)),
            # They do not know how many workers there are.
            *((name, "none", True) for name in local.REGISTRY),
        ],
        lambda case: case[2] or case[:2] == ("choco", "none"),
    ),
)
def test_any_start_ends_at_the_mean_of_the_starts(name, compressor, named):
    """Where `init` sees all starts, in an axis that has the name, or has none."""
    init = link(name, compressor).init
    states = jax.jit(jax.vmap(init, axis_name="workers" if named else None))(STARTS)
    check(talk(name, compressor)(STARTS, states))


@pytest.mark.parametrize(
    ("name", "mapper"),
    tiers(
        [(n, m) for n in gossip.REGISTRY for m in ("vmap", "pmap", "shard_map")],
        lambda case: case[0] == "choco",
    ),
)
def test_init_under_the_axis_asks_the_neighbours(name, mapper):
    tx, run = link(name, "none"), talk_alone(name, "none")
    crew = parallel.setup(WORKERS, mapper)
    mapped = parallel.map_step(
        lambda x: run(x, tx.init(x)), crew, in_axes=(0,), out_axes=0
    )
    check(parallel.to_host(mapped(parallel.place(STARTS, crew, 0))))


@pytest.mark.parametrize(
    "name", tiers(gossip.REGISTRY, {"choco", "delayed_sgd"}.__contains__)
)
def test_members_of_an_ensemble_have_starts_of_their_own(name):
    """Mapped inside or around the workers, whose axis need have no name."""
    init = link(name, "none").init
    starts = trees(WORKERS, 3)
    of_one = jax.jit(jax.vmap(init))
    starts = jax.tree.map(np.asarray, starts)
    members = [of_one(jax.tree.map(lambda x, e=e: x[:, e], starts)) for e in range(3)]
    expected = jax.tree.map(lambda *rows: np.stack(rows, axis=1), *members)
    inside = jax.jit(jax.vmap(jax.vmap(init)))(starts)
    outside = jax.jit(jax.vmap(jax.vmap(init), in_axes=1, out_axes=1))(starts)
    for found in (inside, outside):
        jax.tree.map(
            lambda ours, alone: np.testing.assert_allclose(ours, alone, atol=1e-6),
            found,
            expected,
        )


@pytest.mark.parametrize("name", MIXERS)
def test_equal_starts_are_as_if_nobody_had_looked(name):
    """To the bit: a state that was made once and copied for each worker is right."""
    init = link(name, "none").init
    start = jax.tree.map(lambda x: np.asarray(x)[0], STARTS)
    rows, alone = (
        jax.tree.map(lambda x: np.stack([x] * WORKERS), tree)
        for tree in (start, jax.jit(init)(start))
    )
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(init))(rows), alone)

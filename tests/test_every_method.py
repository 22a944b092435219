"""What exchanges and mixers share: ensembles, checks of NaN, and no reduce-scatter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import parallel, wire
from jaxcomp.parallel import collectives
from tests import every_method
from tests.every_method import ALIKE, EXCHANGES, MIXERS, WORKERS, trees, two_steps
from tests.tiers import tiers

# --- Members of an ensemble train as if alone -----------------------------------------

MEMBERS = 3
START, GRADIENTS = trees(WORKERS, MEMBERS), trees(WORKERS, MEMBERS, seed=1)


def inside(step):
    """Each worker has all members."""
    return jax.vmap(jax.vmap(step), axis_name="workers")


def outside(step):
    """Each member has workers of its own."""
    workers = jax.vmap(step, axis_name="workers")
    return jax.vmap(workers, in_axes=1, out_axes=1)


def on_devices(step):
    crew = parallel.setup(WORKERS, "pmap")
    return parallel.map_step(jax.vmap(step), crew, in_axes=0, out_axes=0)


# Collectives of parts of the axis, and of graphs where not everybody hears somebody.
PARTS = ("hierarchical", "choco", "d_psgd")


@functools.cache
def alone(name):
    """Two steps of all workers, as one program."""
    return jax.jit(jax.vmap(functools.partial(two_steps, name), axis_name="workers"))


@functools.cache
def one_by_one(name):
    members = [
        alone(name)(*jax.tree.map(lambda x, e=e: x[:, e], (START, GRADIENTS)))
        for e in range(MEMBERS)
    ]
    return jax.tree.map(lambda *rows: np.stack(rows, axis=1), *members)


@pytest.mark.parametrize(
    ("name", "nested"),
    tiers(
        [
            *((name, inside) for name in (*EXCHANGES, *MIXERS)),
            *((name, how) for name in PARTS for how in (outside, on_devices)),
        ],
        lambda case: (
            case[0] not in ALIKE and (case[0] != "d_psgd" or case[1] is inside)
        ),
    ),
)
def test_members_are_trained_as_if_alone(name, nested):
    step = nested(functools.partial(two_steps, name))
    if nested is not on_devices:
        step = jax.jit(step)
    jax.tree.map(
        lambda ours, alone: np.testing.assert_allclose(
            ours, alone, rtol=2e-5, atol=2e-5
        ),
        step(START, GRADIENTS),
        one_by_one(name),
    )


def test_a_change_of_what_is_sent_is_a_change_of_what_arrives():
    """Collectives are linear, and remain whose they are under `jax.jvp`."""

    def sent(x):
        return collectives.permute(x, [(0, 1), (1, 0)], "workers")

    def change(x, direction):
        return jax.jvp(sent, (x,), (direction,))[1]

    x, direction = START["bias"], GRADIENTS["bias"]
    np.testing.assert_array_equal(inside(change)(x, direction), inside(sent)(direction))


# --- NaN stands for no value anywhere: each method runs where JAX refuses it ----------


@pytest.mark.parametrize(
    "name", tiers((*EXCHANGES, *MIXERS), lambda name: name not in ALIKE)
)
def test_ordinary_numbers_pass_the_check(name):
    with jax.debug_nans(True):
        jax.block_until_ready(alone(name)(trees(WORKERS), trees(WORKERS, seed=1)))


# --- Nothing is sent by a reduce-scatter ----------------------------------------------
# XLA runs it with Gloo's algorithm of halving and doubling, which several versions are
# reported to get wrong. An exchange that needs its result can take an all-to-all.

SPECS = {
    "kernel": jax.ShapeDtypeStruct((8, 9), jnp.float32),
    "bias": jax.ShapeDtypeStruct((41,), jnp.float32),
}


def kinds(step, *args) -> set[str]:
    """The kinds of collectives of the function of one worker."""
    found = wire.traced_collectives(step, *args, axis="workers", workers=WORKERS)
    return {collective.kind for collective in found}


@pytest.mark.parametrize("name", MIXERS)
def test_no_mixer_scatters_a_sum(name):
    mixer = every_method.mixer(name)
    state = jax.eval_shape(mixer.init, SPECS)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    sent = set()
    for phase in set(mixer.schedule):

        def step(tree, state, seed, phase=phase):
            return mixer.mix(tree, tree, state, jax.random.key(seed), phase)[:2]

        sent |= kinds(step, SPECS, state, seed)
    assert sent
    assert "reduce-scatter" not in sent


def test_the_check_would_see_one():
    def step(x):
        return jax.lax.psum_scatter(x, "workers")

    assert kinds(step, jnp.ones(WORKERS)) == {"reduce-scatter"}

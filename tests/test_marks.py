"""Marks of state in other people's loops, and steps that are not finite somewhere."""

import functools
from typing import Any

import flax.jax_utils
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.types import Clock, PerWorker
from jaxcomp.transforms.distributed import DistributedState
from tests.every_method import ALIKE, EXCHANGES, MIXERS, WORKERS, link, trees
from tests.exchanges.matrix import (
    FIRST,
    MEMORIES,
    PAIRS,
    compiled,
    few_workers,
    gradients,
    steps_of,
    with_memory,
)
from tests.tiers import tiers

# --- One bad gradient, on one worker --------------------------------------------------

pytestmark = pytest.mark.usefixtures("in_time")
GOOD = trees(WORKERS, seed=1)
BAD = jax.tree.map(jnp.copy, GOOD)
BAD["bias"] = BAD["bias"].at[2, 3].set(jnp.nan)


@functools.cache
def three_steps(name):
    """Params and state of all workers at the start and after a bad and a good step."""
    tx = jaxcomp.skip_nonfinite(
        optax.chain(
            jaxcomp.per_worker(optax.trace(0.5)),
            link(name),
            optax.sgd(0.1, momentum=0.9),
        )
    )

    def run(*gradients):
        params = trees()
        state = tx.init(params)
        history: list[Any] = [(params, state)]
        for gradient in gradients:
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            history.append((params, state))
        return history

    mapped = jax.vmap(run, axis_name="workers", axis_size=WORKERS)
    return jax.tree.map(np.asarray, jax.jit(mapped)(GOOD, BAD, GOOD))


@pytest.mark.parametrize("name", tiers(EXCHANGES, lambda name: name not in ALIKE))
def test_all_workers_skip_what_is_bad_on_one(name):
    _, before, after, later = three_steps(name)

    def kept(new, old):
        if isinstance(new, Clock):
            np.testing.assert_array_equal(new.step, old.step + 1)
        else:
            np.testing.assert_array_equal(new, old)

    jax.tree.map(kept, after, before, is_leaf=lambda x: isinstance(x, Clock))
    params, state = later
    for leaf in jax.tree.leaves(params):
        np.testing.assert_array_equal(leaf, leaf[:1].repeat(WORKERS, axis=0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, state)))
    assert not np.array_equal(params["bias"], after[0]["bias"])


@pytest.mark.parametrize("mapper", ["pmap", "shard_map"])
def test_nobody_waits_for_a_worker_that_skips(mapper):
    """A chain on devices: a local decision would leave the others in a collective."""
    tx = jaxcomp.skip_nonfinite(
        optax.chain(jaxcomp.per_worker(TRACE), LINK, optax.sgd(0.1, momentum=0.9))
    )
    state = after_steps(tx, (GOOD, BAD, GOOD), mapper=mapper)
    jaxcomp.check_state(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    skipping, clean = state, after_steps(tx, (GOOD, GOOD), mapper=mapper)
    jax.tree.map(np.testing.assert_array_equal, skipping[0], clean[0])


@pytest.mark.parametrize("mapper", tiers(parallel.MAPPERS, "vmap".__ne__))
def test_what_follows_pmean_sees_the_mean(mapper):
    """A loop with a test of its own, such as haiku's with jmp: nobody skips alone."""
    mean = jaxcomp.pmean(jaxcomp.make_exchange(compressor="random_k(keep=0.1)"), seed=0)
    crew = parallel.setup(WORKERS, mapper)
    state = (trees(), mean.init(trees()))

    def step(state, gradient):
        params, comm = state
        gradient, comm = mean(gradient, comm)
        finite = jnp.isfinite(optax.tree.norm(gradient))
        moved = jax.tree.map(lambda p, g: p - g.dtype.type(0.1) * g, params, gradient)
        params = jax.tree.map(lambda a, b: jnp.where(finite, a, b), moved, params)
        return (params, comm), (params, finite)

    axes = parallel.axes(state)
    mapped = parallel.map_step(
        step, crew, in_axes=(axes, 0), out_axes=(axes, 0), check_vma=True
    )
    state, verdicts = parallel.spread(state, crew), []
    for gradient in (GOOD, BAD, GOOD):
        state, (params, finite) = mapped(state, parallel.place(gradient, crew, 0))
        params, finite = parallel.to_host((params, finite))
        verdicts.append(finite.tolist())
        for leaf in jax.tree.leaves(params):
            np.testing.assert_array_equal(leaf, leaf[:1].repeat(WORKERS, axis=0))
    assert verdicts == [[True] * WORKERS, [False] * WORKERS, [True] * WORKERS]
    jaxcomp.check_state(state)


# --- Marks ----------------------------------------------------------------------------


def after_steps(tx, gradients=(GOOD, GOOD), axes_of=parallel.axes, mapper="pmap"):
    """The state of a loop on devices, as the loop declares it."""
    crew = parallel.setup(WORKERS, mapper)
    state = (trees(), tx.init(trees()))

    def step(state, gradient):
        params, opt_state = state
        updates, opt_state = tx.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    axes = axes_of(state)
    mapped = parallel.map_step(step, crew, in_axes=(axes, 0), out_axes=axes)
    state = parallel.spread(state, crew) if axes_of is parallel.axes else state
    for gradient in gradients:
        state = mapped(state, parallel.place(gradient, crew, 0))
    return state


def replicated(state):
    """The axes of flax's own example."""
    return


GATHER = jaxcomp.make_exchange(compressor="top_k(keep=0.3)")
LINK = jaxcomp.distributed(GATHER, seed=0)
TRACE = optax.trace(0.9)


def test_marked_state_passes():
    jaxcomp.check_state(after_steps(optax.chain(jaxcomp.per_worker(TRACE), LINK)))
    # XLA copies what has no elements to all devices, whatever the step declares.
    crew = parallel.setup(WORKERS, "shard_map")
    empty = parallel.spread(PerWorker(np.zeros((3, 0), np.float32)), crew)
    step = parallel.map_step(lambda x: x, crew, in_axes=(0,), out_axes=0)
    jaxcomp.check_state(step(empty))


def test_an_unmarked_link_before_the_exchange_is_named():
    state = after_steps(optax.chain(TRACE, LINK))
    with pytest.raises(ValueError, match=r"1/0/trace/bias is not marked.*per_worker"):
        jaxcomp.check_state(state)


def test_marks_that_the_loop_does_not_heed_are_named():
    """Residuals that a checkpoint would lose, though all runs without an error."""
    state = after_steps(LINK, axes_of=replicated)
    with pytest.raises(ValueError, match=r"residual/value/bias is marked.*axes\(state"):
        jaxcomp.check_state(state)


def test_state_with_a_leading_axis_everywhere_is_compared_by_rows():
    jaxcomp.check_state(lived())
    with pytest.raises(ValueError, match="trace/bias is not marked"):
        jaxcomp.check_state(stacked(optax.chain(TRACE, LINK), [GOOD]))


def test_leaves_that_no_exchange_averages_are_named():
    """`optax.masked` hides leaves from the link: they stay local."""
    link = jaxcomp.distributed(GATHER, seed=0, allow_masked=True)
    state = after_steps(optax.masked(link, {"bias": False, "kernel": True}))
    with pytest.raises(ValueError, match="^0/bias is not marked.*drift apart$"):
        jaxcomp.check_state(state)


def stacked(tx, gradients):
    """The state after steps with a leading axis everywhere, as in flax's examples."""
    devices = jax.devices()[:WORKERS]
    state = flax.jax_utils.replicate((trees(), tx.init(trees())), devices)

    def step(state, gradient):
        updates, opt_state = tx.update(gradient, state[1], state[0])
        return optax.apply_updates(state[0], updates), opt_state

    mapped = jax.pmap(step, "workers", devices=devices)
    for gradient in gradients:
        state = mapped(state, gradient)
    return state


@functools.cache
def lived():
    return stacked(LINK, [GOOD])


def test_one_workers_part_of_the_state_is_told():
    """What `unreplicate` leaves looks like a state of the same structure."""
    for state in (after_steps(LINK), lived()):
        jaxcomp.check_state(state)
        with pytest.raises(
            ValueError, match=r"^1 holds one worker's part.*unreplicate"
        ):
            jaxcomp.check_state(flax.jax_utils.unreplicate(state))
        with pytest.raises(ValueError, match="^the state holds one worker's part"):
            jaxcomp.check_state(flax.jax_utils.unreplicate(state)[1])
    jaxcomp.check_state(LINK.init(trees()))  # fresh: nothing is kept yet


def test_keys_and_numbers_in_a_state_are_looked_at():
    """Dropout has a key; stacked states may hold scalars that nobody stacked."""
    keys = jax.random.split(jax.random.key(0), WORKERS)
    state = {"link": lived(), "epoch": jnp.int32(3)}
    jaxcomp.check_state({**state, "dropout": PerWorker(keys)})
    jaxcomp.check_state({**state, "dropout": keys[jnp.zeros(WORKERS, jnp.int32)]})
    with pytest.raises(ValueError, match="dropout is not marked, and differs"):
        jaxcomp.check_state({**state, "dropout": keys})


def test_what_stands_beside_own_models_need_not_be_stacked():
    """A link inside of a mark says nothing of what is outside."""
    own = PerWorker(lived())
    jaxcomp.check_state({"own": own, "losses": jnp.arange(5.0)})


# --- Gradients that are averaged before the exchange ----------------------------------

AVERAGED = jax.tree.map(
    lambda x: jnp.broadcast_to(x.mean(axis=0, keepdims=True), x.shape), GOOD
)
TWICE = "1 is what each worker keeps .* the same on all 4 to the bit: gradients are av"


def marked(tx, gradients):
    return after_steps(tx, gradients)


@pytest.mark.parametrize("style", [marked, stacked])
def test_a_pmean_that_stays_in_is_noticed(style):
    """Under pmap no type tells; all bytes are sent, and nothing is gained."""
    jaxcomp.check_state(style(LINK, [GOOD]))
    with pytest.raises(ValueError, match=TWICE):
        jaxcomp.check_state(style(LINK, [AVERAGED]))


def test_one_batch_for_all_workers_is_noticed_under_jit():
    """Where the model is cut, each device has a piece of what its worker keeps."""
    mesh = Mesh(np.array(jax.devices()[:WORKERS]).reshape(2, 2), ("data", "model"))
    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.3)", axis="data")
    dp = jaxcomp.data_parallel(exchange, mesh)
    params = jax.device_put(jnp.ones((6, 2)), NamedSharding(mesh, P("model")))
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)

    def loss_of(params, x):
        return jnp.mean(jnp.square(x @ params))

    def comm_of(in_axes):
        step = jax.jit(dp.value_and_grad(loss_of, in_axes=in_axes))
        return {"comm": step(dp.init(params), params, batch)[2]}

    jaxcomp.check_state(comm_of(in_axes=0))
    with pytest.raises(ValueError, match=r"comm/links/0 is what .* same on all 2 to"):
        jaxcomp.check_state(comm_of(in_axes=None))


@pytest.mark.parametrize(
    ("exchange", "compressor"),
    tiers(PAIRS, lambda x: x[0] in ("gather", "two_phase") and x in FIRST.items()),
)
def test_gradients_that_differ_raise_no_alarm(exchange, compressor):
    """Whatever the exchange, and whatever a memory keeps of them."""
    workers = few_workers(exchange)
    for memory in MEMORIES if exchange == "gather" else MEMORIES[:2]:
        try:
            built = with_memory(compiled(exchange, compressor, workers), memory)
            last = steps_of(built, workers, 2, lambda i: gradients(workers, i))[-1]
        except jaxcomp.SpecError:
            continue  # they do not go together
        clock = Clock(jnp.int32(2))
        jaxcomp.check_state(DistributedState(clock, last.state, PerWorker(last.info)))


@pytest.mark.parametrize("name", tiers(MIXERS, lambda name: name not in ALIKE))
def test_own_models_may_be_equal(name):
    """They begin alike, and are alike after every round: that proves nothing."""
    tx = link(name)
    crew = parallel.setup(WORKERS, "vmap")

    def step(params, gradient):
        state = tx.init(params)
        updates, state = tx.update(gradient, state, params)
        return tx.update(gradient, state, optax.apply_updates(params, updates))[1]

    mapped = jax.jit(jax.vmap(step, (None, 0), axis_name="workers"))
    jaxcomp.check_state(PerWorker(mapped(trees(), parallel.place(GOOD, crew, 0))))

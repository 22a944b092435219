"""Marks of state in other people's loops, and steps that are not finite somewhere."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp import parallel
from jaxcomp.base import Clock, PerWorker
from tests.every_method import ALIKE, EXCHANGES, WORKERS, exchange, link, trees
from tests.tiers import tiers

# --- One bad gradient, on one worker --------------------------------------------------

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


@pytest.mark.parametrize("compressor", ["top_k(keep=0.1)", "random_k(keep=0.1)"])
@pytest.mark.parametrize("mapper", tiers(parallel.MAPPERS, "vmap".__ne__))
def test_what_follows_pmean_sees_the_mean(mapper, compressor):
    """A loop with a test of its own, such as haiku's with jmp: nobody skips alone."""
    mean = jaxcomp.pmean(jaxcomp.make_exchange(compressor=compressor), seed=0)
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


@pytest.mark.parametrize("name", EXCHANGES)
def test_pmean_is_the_link(name):
    """One mechanism: the same mean and the same state."""
    mean = jaxcomp.pmean(exchange(name), seed=0)
    tx = link(name)

    def both(x):
        state = tx.init(x)
        return mean(x, state), tx.update(x, state)

    ours, links = jax.eval_shape(jax.vmap(both, axis_name="workers"), trees(WORKERS))
    assert ours == links


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
    def of(tx):
        state = (trees(), tx.init(trees()))
        rows = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), state)

        def step(state, gradient):
            updates, opt_state = tx.update(gradient, state[1], state[0])
            return optax.apply_updates(state[0], updates), opt_state

        mapped = jax.pmap(step, "workers", devices=jax.devices()[:WORKERS])
        return mapped(rows, trees(WORKERS, seed=1))

    jaxcomp.check_state(of(LINK))
    with pytest.raises(ValueError, match="trace/bias is not marked"):
        jaxcomp.check_state(of(optax.chain(TRACE, LINK)))


def test_leaves_that_no_exchange_averages_are_named():
    """`optax.masked` hides leaves from the link: they stay local."""
    link = jaxcomp.distributed(GATHER, seed=0, allow_masked=True)
    state = after_steps(optax.masked(link, {"bias": False, "kernel": True}))
    with pytest.raises(ValueError, match="^0/bias is not marked.*drift apart$"):
        jaxcomp.check_state(state)


def test_a_marked_link_computes_what_it_did():
    grads, marked = trees(), jaxcomp.per_worker(TRACE)
    updates, state = marked.update(grads, marked.init(grads))
    expected, plain = TRACE.update(grads, TRACE.init(grads))
    jax.tree.map(
        np.testing.assert_array_equal, (updates, state), (expected, PerWorker(plain))
    )

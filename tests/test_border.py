"""The border: in anybody's training code a method is right, or refused with reasons."""

import functools
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh

import jaxcomp
from jaxcomp import compressors, exchanges, memory, parallel
from jaxcomp.core.types import PerWorker
from tests.every_method import ALIKE, ARGUMENTS, EXCHANGES, MIXERS, WORKERS, link, trees
from tests.tiers import tiers

METHODS = (*EXCHANGES, *MIXERS)


# --- shard_map with check_vma=True, its default ---------------------------------------


def crew_of(name):
    """jax has no collectives of parts of an axis there, but those of two axes."""
    devices = np.array(jax.devices()[:WORKERS])
    if name != "hierarchical":
        mesh = Mesh(devices, ("workers",))
        return parallel.Workers("shard_map", WORKERS, "workers", mesh)
    axes: Any = ("hosts", "local")
    mesh = Mesh(devices.reshape(2, 2), axes)
    return parallel.Workers("shard_map", WORKERS, axes, mesh)


@functools.cache
def typed_link(name):
    if name != "hierarchical":
        return link(name)
    spec, axis = name + ARGUMENTS[name], crew_of(name).axis
    return jaxcomp.distributed(exchanges.make(spec, "sign", axis=axis), seed=0)


def two_steps(name, tx, crew, **options):
    """Two steps in a loop under a mapper, and their arguments."""
    is_mixer = name in MIXERS
    state = tx.init(trees())
    state = PerWorker(state) if is_mixer else state

    def run(params, state, gradient):
        def step(state, factor):
            given = jax.tree.map(lambda g: factor * g, gradient)
            updates, new = tx.update(given, state.value if is_mixer else state, params)
            return (PerWorker(new) if is_mixer else new), updates

        return jax.lax.scan(step, state, jnp.array([1.0, -0.5]))

    axes = parallel.axes(state)
    mapped = parallel.map_step(
        run,
        crew,
        in_axes=(0, axes, 0),
        out_axes=(axes, 0 if is_mixer else None),
        **options,
    )
    given = parallel.place((trees(WORKERS), trees(WORKERS, seed=1)), crew, 0)
    return mapped, (given[0], parallel.spread(state, crew), given[1])


@pytest.mark.parametrize("name", METHODS)
def test_types_of_every_method_pass(name):
    """A mean has the type of what all workers share, what is kept that of their own."""
    mapped, given = two_steps(name, typed_link(name), crew_of(name), check_vma=True)
    jax.eval_shape(mapped, *given)


@pytest.mark.parametrize("spec", memory.REGISTRY)
def test_types_of_every_memory_pass(spec):
    built = memory.make(spec, exchanges.make("gather", "sign"))
    tx = optax.chain(
        jaxcomp.per_worker(optax.trace(0.9)),
        jaxcomp.clipping.clip_by_worker_norm(1.0),
        jaxcomp.distributed(built, seed=0),
    )
    mapped, given = two_steps("gather", tx, crew_of("gather"), check_vma=True)
    jax.eval_shape(mapped, *given)


@pytest.mark.parametrize("name", tiers(METHODS, lambda name: name not in ALIKE))
def test_checked_types_change_no_numbers(name):
    checked, given = two_steps(name, typed_link(name), crew_of(name), check_vma=True)
    simulated, same = two_steps(name, link(name), parallel.setup(WORKERS, "vmap"))
    jax.tree.map(
        lambda ours, alone: np.testing.assert_allclose(
            ours, alone, rtol=2e-5, atol=2e-5
        ),
        *map(parallel.to_host, (checked(*given), simulated(*same))),
    )


def traced(step, *trees, in_axes: Any = 0, out_axes: Any = 0):
    """Under types, without compiling; leading axes are those of the workers."""
    crew = crew_of("any")
    mapped = parallel.map_step(
        step, crew, in_axes=in_axes, out_axes=out_axes, check_vma=True
    )
    return jax.eval_shape(mapped, *trees)


# Long vectors go other ways, and so do options that are not the usual ones.
LONG = jax.ShapeDtypeStruct((WORKERS, 600, 500), jnp.float32)
OPTIONS = (
    *("block_top_k(keep=0.3)", "count_sketch(keep=0.01)", "svd(rank=1)"),
    *("threshold(v=0.1, cap=0.1)", "dgc_top_k(resample=False)"),
    *("top_k(keep=0.1) | qsgd", "eden(bits=1, unbiased=False)"),
)


@pytest.mark.parametrize("compressor", [*compressors.REGISTRY, *OPTIONS])
def test_types_of_every_compressor_pass(compressor):
    exchange = exchanges.make("gather", compressor)

    def step(x):
        state = exchange.init(x)
        return exchange.average(x, state, jax.random.key(0)).mean

    for x in (LONG, jax.ShapeDtypeStruct((WORKERS, 7), jnp.float32)):
        assert traced(step, x, out_axes=None).shape == x.shape[1:]


@pytest.mark.parametrize("name", METHODS)
def test_what_is_summed_already_is_refused(name):
    """`jax.grad` of params that all workers share sums over them."""
    tx = link(name)

    def loss_of(params, x):
        return sum(jnp.sum(p * x) for p in jax.tree.leaves(params))

    def step(params, x):
        gradient = jax.grad(loss_of)(params, x)
        return tx.update(gradient, tx.init(params), params)[0]

    x = jax.ShapeDtypeStruct((WORKERS,), jnp.float32)
    means = "a model of its own" if name in MIXERS else "summed or averaged already"
    with pytest.raises(ValueError, match=f"bias is the same on all.*{means}.*pcast"):
        traced(step, trees(), x, in_axes=(None, 0))


@pytest.mark.parametrize("made", ["distributed", "pmean", "skip_nonfinite"])
def test_a_part_that_is_summed_already_is_refused(made):
    def step(x):
        x = {**x, "bias": jax.lax.pmean(x["bias"], "workers")}
        if made == "pmean":
            mean = jaxcomp.pmean(exchanges.make("gather", "sign"), seed=0)
            return mean(x, mean.init(x))[0]
        tx = link("gather")
        tx = jaxcomp.skip_nonfinite(tx) if made == "skip_nonfinite" else tx
        return tx.update(x, tx.init(x), x)[0]

    with pytest.raises(ValueError, match="bias is the same on all workers"):
        traced(step, trees(WORKERS))


def test_params_of_the_workers_own_give_gradients_of_their_own():
    """What the error says to do."""
    tx = link("gather")

    def step(params, x):
        own = jax.lax.pcast(params, "workers", to="varying")
        gradient = jax.grad(lambda p: jnp.sum(p["bias"] * x) + 0 * p["kernel"].sum())
        updates, _ = tx.update(gradient(own), tx.init(params), params)
        return optax.apply_updates(params, updates)

    x = jax.ShapeDtypeStruct((WORKERS,), jnp.float32)
    assert traced(step, trees(), x, in_axes=(None, 0), out_axes=None)


def test_parts_of_an_axis_are_refused_with_the_way_out():
    step = functools.partial(two_steps, "hierarchical", link("hierarchical"))
    mapped, given = step(crew_of("any"), check_vma=True)
    with pytest.raises(ValueError, match=r"no collectives of parts.*axis=\('hosts'"):
        jax.eval_shape(mapped, *given)


# --- State of other people's making ---------------------------------------------------


@pytest.mark.parametrize("mapper", parallel.MAPPERS)
def test_parts_that_are_not_there_stay_away(mapper):
    """Models are partitioned by None, and optional parts of a state are None."""
    crew = parallel.setup(WORKERS, mapper)
    own = {"x": np.float32(3), "nothing": None}
    state = {"kept": PerWorker(own), "scale": None, "step": np.int32(1)}
    placed, axes = parallel.spread(state, crew), parallel.axes(state)

    def step(state):
        return jax.tree.map(lambda x: x + x.dtype.type(1), state)

    mapped = parallel.map_step(step, crew, in_axes=(axes,), out_axes=axes)
    after = parallel.place(parallel.to_host(mapped(placed)), crew, axes)
    expected = {
        "kept": PerWorker({"x": np.full(WORKERS, 4), "nothing": None}),
        "scale": None,
        "step": 2,
    }
    assert jax.tree.structure(after) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, after, expected)


def as_nnx_state(tx):
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return nnx.state(nnx.Optimizer(model, tx, wrt=nnx.Param))


def as_state_dict(tx):
    return flax.serialization.to_state_dict(tx.init(trees()))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("made", [as_nnx_state, as_state_dict])
def test_state_that_lost_its_marks_is_refused(made, name):
    """Plain dicts would be declared the same on all workers, residuals and all."""
    state = made(optax.chain(link(name), optax.sgd(0.1, momentum=0.9)))
    with pytest.raises(TypeError, match=r"plain dicts.*opt_state"):
        parallel.axes(state)


def test_state_that_kept_its_marks_is_taken():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, link("gather"), wrt=nnx.Param)
    assert parallel.axes(optimizer.opt_state).info == PerWorker(0)


# --- No axis, or one of another name --------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_under_jit_alone_it_says_what_to_do(name):
    tx = link(name)

    def step(x):
        return tx.update(x, tx.init(x), x)

    with pytest.raises(NameError, match=r"no axis 'workers'.*jaxcomp\.data_parallel"):
        jax.eval_shape(step, trees())


@pytest.mark.parametrize("name", METHODS)
def test_an_axis_of_another_name_is_found(name):
    tx = link(name)

    def step(x):
        return tx.update(x, tx.init(x), x)[0]

    with pytest.raises(NameError, match=r"is it 'batch'\? Then .*axis='batch'\)"):
        jax.eval_shape(jax.vmap(step, axis_name="batch"), trees(WORKERS))

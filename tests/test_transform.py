"""`distributed` inside other people's loops."""

import zlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import jaxcomp
from jaxcomp.transforms.distributed import find_state, find_states, step_key

WORKERS = 4
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(WORKERS, 16, 5)).astype(np.float32)
TRUTH = RNG.normal(size=(5, 1)).astype(np.float32)
TARGETS = INPUTS @ TRUTH
EXCHANGE = jaxcomp.make_exchange(compressor="top_k(keep=0.4)")


def chain(seed: int | None = 0):
    return optax.chain(
        jaxcomp.distributed(EXCHANGE, seed=seed), optax.sgd(0.1, momentum=0.5)
    )


def loss_of(params, inputs, targets):
    return jnp.mean(jnp.square(inputs @ params["w"] + params["b"] - targets))


def fresh_params():
    return {"w": jnp.zeros((5, 1)), "b": jnp.zeros((1, 1))}


def test_flax_train_state_under_pmap():
    """The usual flax loop: replicated TrainState, no key anywhere, one added line."""
    model = nn.Dense(1)
    variables = model.init(jax.random.key(0), INPUTS[0])
    state = TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=chain()
    )
    state = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), state)

    def step(state, inputs, targets):
        def loss_of(params):
            predictions = state.apply_fn({"params": params}, inputs)
            return jnp.mean(jnp.square(predictions - targets))

        return state.apply_gradients(grads=jax.grad(loss_of)(state.params))

    mapped = jax.pmap(step, axis_name="workers", devices=jax.devices()[:WORKERS])
    for _ in range(100):
        state = mapped(state, INPUTS, TARGETS)
        jax.block_until_ready(state)
    kernel = np.asarray(state.params["kernel"])
    np.testing.assert_array_equal(kernel, kernel[:1].repeat(WORKERS, axis=0))
    np.testing.assert_allclose(kernel[0], TRUTH, atol=1e-2)
    residual = find_state(state.opt_state).exchange.residual.value["kernel"]
    assert len(np.unique(residual, axis=0)) == WORKERS, "each worker keeps its own"


def test_a_missing_key_is_an_error_that_names_it():
    tx = chain(seed=None)
    params = fresh_params()
    with pytest.raises(TypeError, match=r"needs key=.*seed=0"):
        tx.update(params, tx.init(params), params)


def test_it_takes_an_exchange_and_nothing_else():
    with pytest.raises(TypeError, match="make_exchange"):
        jaxcomp.distributed("gather")  # pyright: ignore[reportArgumentType]


def test_init_needs_no_axis_and_accepts_what_others_pass():
    """Host-side init; extra arguments of other links pass through the chain."""
    tx = optax.chain(
        jaxcomp.distributed(EXCHANGE, seed=0), optax.contrib.reduce_on_plateau()
    )
    params = fresh_params()
    state = tx.init(params)

    def step(grads):
        return tx.update(grads, state, params, value=jnp.float32(1.0))[0]

    stacked = jax.tree.map(lambda p: jnp.ones((2, *p.shape)), params)
    with jax.numpy_dtype_promotion("standard"):  # reduce_on_plateau is not strict
        mean = jax.jit(jax.vmap(step, axis_name="workers", out_axes=None))(stacked)
    assert jax.tree.map(jnp.shape, mean) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize("key", [None, jax.random.key(0)], ids=["seed", "key"])
@pytest.mark.parametrize(
    "link",
    [
        jaxcomp.distributed(
            jaxcomp.make_exchange("gather", "random_k(keep=0.1)"), 0, allow_masked=True
        ),
        jaxcomp.mixing(
            jaxcomp.make_mixer("choco", "ring", 2, compressor="random_k(keep=0.1)"),
            seed=0,
            allow_masked=True,
        ),
    ],
    ids=["distributed", "mixing"],
)
def test_links_of_parts_draw_apart_from_one_seed(link, key):
    """Equal parts, one seed: the places they send are not the same."""
    labels = {"a": "a", "b": "b"}
    tx = optax.multi_transform({"a": link, "b": link}, labels)

    def step(x):
        tree = {"a": x, "b": x}
        return tx.update(tree, tx.init(tree), tree, key=key)[0]

    rows = jnp.asarray(np.random.default_rng(0).normal(size=(2, 500)), jnp.float32)
    updates = jax.jit(jax.vmap(step, axis_name="workers"))(rows)
    assert not np.array_equal(updates["a"], updates["b"])


RING = jaxcomp.make_mixer("choco", "ring", 2, compressor="sign")
LINKS = {
    "distributed": lambda **more: jaxcomp.distributed(EXCHANGE, 0, **more),
    "mixing": lambda **more: jaxcomp.mixing(RING, 0, **more),
}


@pytest.mark.parametrize("name", LINKS)
def test_what_is_masked_is_refused(name):
    """`optax.masked` hands it on as it is: each worker would go its own way."""
    params = {"layer": fresh_params(), "out": jnp.zeros(3)}
    tx = optax.masked(LINKS[name](), {"layer": {"w": True, "b": False}, "out": False})
    with pytest.raises(
        ValueError, match="layer/b is hidden by.*, as are 1 others: "
    ) as e:
        tx.init(params)
    for way_out in ("policy=[('*/bias', 'none')]", "allow_masked=True"):
        assert way_out in str(e.value)
    allowed = optax.masked(LINKS[name](allow_masked=True), tree_of(params, "w"))
    allowed.init(params)
    partitioned: Any = {**params, "frozen": None}  # as by equinox
    LINKS[name]().init(partitioned)


def tree_of(params, name):
    """A mask: what is called so, and nothing else."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == name, params
    )


def test_what_the_ways_out_promise_holds():
    """Uncompressed by a policy, or frozen: replicas stay the same."""
    policy = jaxcomp.make_exchange(compressor="top_k(keep=0.2)", policy=[("b", "none")])
    frozen = optax.multi_transform(
        {
            "train": jaxcomp.distributed(EXCHANGE, 0, allow_masked=True),
            "freeze": optax.set_to_zero(),
        },
        {"w": "train", "b": "freeze"},
    )
    grads = jax.tree.map(
        lambda p: jnp.asarray(RNG.normal(size=(2, *p.shape)), p.dtype), fresh_params()
    )

    def step(tx):
        state = tx.init(fresh_params())
        mean = jax.vmap(lambda g: tx.update(g, state)[0], axis_name="workers")
        return jax.tree.map(np.asarray, jax.jit(mean)(grads))

    sent, kept = step(jaxcomp.distributed(policy, 0)), step(frozen)
    np.testing.assert_allclose(sent["b"][0], grads["b"].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(kept["b"], 0)
    for leaf in jax.tree.leaves((sent, kept)):
        np.testing.assert_array_equal(leaf[0], leaf[1])


def test_a_part_is_the_same_in_every_process():
    """A number that a hash of names, salted anew in each process, would not give."""
    key = jax.random.key(1)
    part = {"a": jnp.ones(2), "b": optax.MaskedNode()}
    of_part = step_key(key, None, jnp.int32(3), part)
    named = jax.random.fold_in(key, zlib.crc32(b"['a']"))
    assert of_part == jax.random.fold_in(named, 3)
    whole = step_key(key, None, jnp.int32(3), {"a": jnp.ones(2)})
    drawn = {
        str(step_key(None, seed, jnp.int32(step), {"a": jnp.ones(2)}))
        for seed, step in [(0, 0), (0, 0), (1, 0), (0, 1)]
    }
    assert len(drawn) == 3, "seed and step"
    assert whole == jax.random.fold_in(key, 3), "as it always was"


def test_find_state_wants_exactly_one():
    with pytest.raises(ValueError, match="found 0"):
        find_state(optax.adam(0.1).init(fresh_params()))
    twice = optax.chain(chain(), chain()).init(fresh_params())
    with pytest.raises(ValueError, match=r"found 2. find_states\(\)"):
        find_state(twice)
    assert [int(state.step) for state in find_states(twice)] == [0, 0]

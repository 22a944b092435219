"""`jaxcomp.pmap` and `jaxcomp.shard_map`: JAX's own, and right for marked state."""

from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import pytest
from flax import jax_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core.types import PerWorker

pytestmark = pytest.mark.usefixtures("in_time")
WORKERS = 4
MESH = Mesh(np.array(jax.devices()[:WORKERS]), "data")
EXCHANGE = jaxcomp.make_exchange(compressor="top_k(keep=0.25)", axis="data")
MEAN = jaxcomp.pmean(EXCHANGE, seed=0)
ROWS = np.random.default_rng(0).normal(size=(WORKERS, 8)).astype(np.float32)


def step(state: Any, grads: Any) -> tuple[Any, jax.Array]:
    mean, comm = MEAN(grads.reshape(8), state["comm"])
    return {**state, "w": state["w"] - mean, "comm": comm}, jnp.sum(grads)[None]


def start() -> Any:
    """With a part that is not there, and a node that takes nothing but arrays."""
    w, scale = jnp.zeros(8), jmp.DynamicLossScale(jnp.float32(2))
    state = {"w": w, "comm": MEAN.init(w), "none": None, "scale": scale}
    return parallel.spread(state, MESH)


def by_pmap(**options: Any) -> Any:
    devices = jax.devices()[:WORKERS]
    axes = {"in_axes": (None, 0), "out_axes": (None, 0), "devices": devices}
    return jaxcomp.pmap(step, "data", **axes, **options)


def by_shard_map(**options: Any) -> Any:
    specs = {"in_specs": (P(), P("data")), "out_specs": (P(), P("data"))}
    return jax.jit(jaxcomp.shard_map(step, mesh=MESH, **specs, **options))


MAPPED = {
    "pmap": by_pmap,
    "shard_map": by_shard_map,
    "shard_map unchecked": lambda: by_shard_map(check_vma=False),
}


@pytest.mark.parametrize("mapper", MAPPED)
def test_residuals_are_each_workers_own_whatever_the_axes_say(mapper):
    """They come back from a checkpoint to the bit, and nothing given is lost."""
    mapped, state = MAPPED[mapper](), start()
    for _ in range(3):
        state, sums = mapped(state, ROWS)
        np.testing.assert_allclose(sums.reshape(WORKERS), ROWS.sum(axis=1), rtol=1e-5)
    jaxcomp.check_state(state)
    residual = np.asarray(state["comm"].exchange.residual.value)
    assert residual.shape == (WORKERS, 8)
    given = 3 * ROWS.mean(axis=0)
    np.testing.assert_allclose(residual.mean(axis=0) - state["w"], given, rtol=1e-4)

    saved = jax.tree.map(np.asarray, state)
    restored, _ = mapped(saved, ROWS)
    expected, _ = mapped(state, ROWS)
    for a, b in zip(*map(jax.tree.leaves, (restored, expected)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mapper", MAPPED)
def test_state_that_was_not_given_to_the_workers_is_refused(mapper):
    state = {"w": jnp.zeros(8), "comm": MEAN.init(jnp.zeros(8))}
    with pytest.raises(ValueError, match=r"parallel\.spread\(state\) once"):
        MAPPED[mapper]()(state, ROWS)


def test_spread_state_in_a_loop_that_replicates_everything_is_refused():
    with pytest.raises(ValueError, match=r"step has no axis of workers.*replicate in"):
        jaxcomp.pmap(step, "data")(parallel.spread(MEAN.init(jnp.zeros(8))), ROWS)


def test_state_that_was_given_to_the_workers_twice_is_refused():
    """Its shapes would broadcast into the gradient."""
    state = {"w": jnp.zeros(8), "comm": parallel.spread(MEAN.init(jnp.zeros(8)), MESH)}
    twice = jax_utils.replicate(state, jax.devices()[:WORKERS])
    mapped = jax.pmap(step, "data", devices=jax.devices()[:WORKERS])
    with pytest.raises(ValueError, match=r"residual/value .*\(4, 8\).* it is \(8,\)"):
        mapped(twice, ROWS)


def test_keys_are_given_to_the_workers_too():
    key = jax.random.key(3)
    state = parallel.spread({"all": key, "own": PerWorker(key)}, MESH)
    assert state["own"].value.shape == (WORKERS,)
    host = parallel.to_host(state)
    for found in (state["all"], host["all"], state["own"].value[2]):
        np.testing.assert_array_equal(jax.random.key_data(found), [0, 3])
    workers = parallel.setup(WORKERS, "shard_map", "data")
    again = parallel.place(host, workers, parallel.axes(state))
    assert again["own"].value.sharding.spec == P("data")


def test_options_are_those_of_jax():
    state = start()
    by_pmap(donate_argnums=0)(state, ROWS)
    assert state["comm"].exchange.residual.value.is_deleted()
    state = start()
    del state["scale"]  # jax describes arguments by what jmp does not take for arrays
    assert "all-gather" in by_pmap().lower(state, ROWS).compile().as_text()


def test_devices_may_share_a_model():
    """Of a mesh of two axes one is that of the workers, and the other JAX's own."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))

    def own(state: Any, x: jax.Array) -> Any:
        return PerWorker(state.value + jnp.sum(x))

    mapped = jaxcomp.shard_map(
        own,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P(),
        axis="data",
        axis_names={"data"},
    )
    state = PerWorker(jnp.zeros(2))
    np.testing.assert_array_equal(jax.jit(mapped)(state, jnp.arange(4.0)).value, [1, 5])


def test_one_set_of_axes_serves_all_arguments():
    """As `in_axes=0` does, for state that has a leading axis throughout."""
    mapped = jaxcomp.pmap(lambda x, y: PerWorker(x + y.value), "i")
    found = mapped(np.arange(8.0), PerWorker(np.arange(8.0)))
    np.testing.assert_array_equal(found.value, 2 * np.arange(8.0))

"""Models narrower than float32: rounding is nobody's update, and nobody's knowledge."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcomp
from jaxcomp.transforms.distributed import find_state
from tests.every_method import MIXERS, WORKERS, mixer, trees
from tests.gossip.runs import flat, spread_of
from tests.tiers import tiers

STEPS, LEARNT, SETTLED = 700, 300, 400
DTYPES = {"brain": jnp.bfloat16, "half": jnp.float16, "usual": jnp.float32}


def lived(name):
    """The models after each step and the last state: they learn, and then only talk."""
    tx = jaxcomp.mixing(mixer(name), seed=0)
    targets = {d: trees(WORKERS)["kernel"] for d in DTYPES}

    def run(start, targets):
        def step(carry, number):
            x, state = carry
            rate = jnp.where(number < LEARNT, 0.01, 0)
            learnt = jax.tree.map(
                lambda t, x: (rate * (t - x.astype(jnp.float32))).astype(x.dtype),
                targets,
                x,
            )
            updates, state = tx.update(learnt, state, x)
            with jax.numpy_dtype_promotion("standard"):  # as optax asks for
                x = optax.apply_updates(x, updates)
            return (x, state), x

        fresh = (start, tx.init(start))
        last, models = jax.lax.scan(step, fresh, jnp.arange(STEPS))
        return models, find_state(last).exchange

    start = {d: jnp.ones((10, 9), dtype) for d, dtype in DTYPES.items()}
    mapped = jax.vmap(run, in_axes=(None, 0), axis_name="workers")
    return jax.jit(mapped)(start, targets)


@pytest.mark.parametrize(
    "name", tiers(MIXERS, {"dcd_psgd", "diloco", "ecd_psgd"}.__contains__)
)
def test_rounding_moves_no_model_once_nobody_learns(name):
    models, state = lived(name)
    for dtype in DTYPES:
        rows = flat(models[dtype], 2)
        ulp = max(float(jnp.finfo(DTYPES[dtype]).eps), 2.0**-19) * np.abs(rows).max()
        means = rows[:, SETTLED:].mean(0)
        np.testing.assert_allclose(means, means[:1] + 0 * means, rtol=0, atol=4 * ulp)
        apart = np.sqrt(spread_of(rows.swapaxes(0, 1)[SETTLED:]) / rows.shape[-1])
        assert apart[-1] < apart[0] + 4 * ulp
        if name == "dcd_psgd":
            weights = jaxcomp.topology("star", WORKERS).matrix
            pull = weights @ rows[:, -1] - rows[:, -1]
            np.testing.assert_allclose(flat(state.pull[dtype], 1), pull, atol=ulp)


@pytest.mark.parametrize(
    "name",
    tiers(["choco", "choco_overlapped", "d_psgd", "deep_squeeze"], "choco".__eq__),
)
def test_workers_far_apart_meet_at_their_mean(name):
    """Most of their steps towards each other are below half an ulp."""
    graph = jaxcomp.topology("ring", WORKERS)
    compressor = "none" if name == "d_psgd" else "cast(dtype=bfloat16)"
    spec = name if name == "d_psgd" else f"{name}(gamma=0.02)"
    tx = jaxcomp.mixing(jaxcomp.make_mixer(spec, graph, compressor=compressor), seed=0)
    start = jax.tree.map(lambda x: x.astype(jnp.bfloat16), 3 * trees(WORKERS)["kernel"])

    def run(start):
        def step(carry, _):
            x, state = carry
            updates, state = tx.update(jnp.zeros_like(x), state, x)
            with jax.numpy_dtype_promotion("standard"):
                x = optax.apply_updates(x, updates)
            return (x, state), x

        return jax.lax.scan(step, (start, tx.init(start)), length=300)[1]

    models = jax.jit(jax.vmap(run, out_axes=1, axis_name="workers"))(start)
    means = np.asarray(models, np.float64).mean(1)
    ulp = float(jnp.finfo(jnp.bfloat16).eps) * np.abs(means).max()
    apart = np.abs(np.asarray(models[-1], np.float64) - means[-1]).max()
    assert apart < np.abs(np.asarray(start, np.float64) - means[0]).max() / 4
    np.testing.assert_allclose(means[-1], means[0], rtol=0, atol=2 * ulp)

"""A quadratic with a known optimum: who reaches it, and who does not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import distributed, make_exchange, parallel

WORKERS, SIZE = 4, 30


def problem(paired=True):
    """f_i(x) = |x - c_i|^2 / 2 with other c_i on each worker; optimum: their mean.

    Gradients do not vanish at the optimum, their mean does. Large ones that cancel hide
    small ones that agree: without a memory top-k sends only the former.

    Args:
      paired: whether each worker has one that is off the optimum the other way.
    """
    rng = np.random.default_rng(0)
    off = rng.normal(size=(WORKERS // 2, SIZE)) * np.linspace(0, 8, SIZE)
    off = np.concatenate([off, -off if paired else rng.normal(size=off.shape) * 3])
    return jnp.asarray(1 + off, jnp.float32)


def distance(exchange, rate, steps=1500, paired=True):
    """From the optimum after `steps`, relative to where it began."""
    centres = problem(paired)
    tx = optax.chain(distributed(exchange, seed=0), optax.sgd(rate))
    params = jnp.zeros(SIZE)
    crew = parallel.setup(WORKERS, "vmap")
    state = parallel.spread(tx.init(params), crew)
    axes = parallel.axes(state)

    def step(carry, _):
        params, state = carry

        def worker(state, centre):
            return tx.update(params - centre, state, params)

        update, state = jax.vmap(
            worker, in_axes=(axes, 0), out_axes=(None, axes), axis_name="workers"
        )(state, centres)
        return (params + update, state), None

    (params, _), _ = jax.lax.scan(step, (params, state), None, length=steps)
    optimum = centres.mean(axis=0)
    return float(jnp.linalg.norm(params - optimum) / jnp.linalg.norm(optimum))


@pytest.mark.parametrize(
    ("memory", "rate"),
    [
        ("error_feedback", 0.02),
        ("dgc", 0.01),
        ("dgc(nesterov=True, masking=False)", 0.002),
        ("ef21", 0.05),
        ("ef21_momentum", 0.05),
        ("local_momentum | error_feedback", 0.02),
        ("shared_momentum | error_feedback", 0.02),
    ],
)
def test_a_memory_reaches_the_optimum(memory, rate):
    exchange = make_exchange("gather", "top_k(keep=0.1)", memory)
    decay = optax.exponential_decay(rate, 500, 0.2)
    assert distance(exchange, decay) < 0.02


@pytest.mark.parametrize("memory", ["none", "local_momentum"])
def test_without_a_memory_a_biased_method_does_not(memory):
    exchange = make_exchange("gather", "top_k(keep=0.1)", memory)
    assert distance(exchange, optax.exponential_decay(0.02, 500, 0.2)) > 0.1


def test_ef21_stands_still_at_the_optimum():
    """With a constant rate too: what is sent vanishes, and so does the step's error."""
    exchange = make_exchange("gather", "top_k(keep=0.1)", "ef21")
    assert distance(exchange, 0.05) < 1e-4


def test_masking_moves_the_optimum_of_unlike_workers():
    """It drops momentum, and more of it where a worker's gradient is large.

    Workers that sample the same data have gradients alike. Where they do not, take
    masking=False; docs/methods.md says so.
    """
    decay = optax.exponential_decay(0.01, 500, 0.2)
    masked = make_exchange("gather", "top_k(keep=0.1)", "dgc")
    plain = make_exchange("gather", "top_k(keep=0.1)", "dgc(masking=False)")
    assert distance(masked, decay, paired=False) > 0.05
    assert distance(plain, decay, paired=False) < 0.02

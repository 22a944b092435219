"""Optimisers made of the same parts, against their published formulas in NumPy."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import SpecError, training
from jaxcomp.memory import REGISTRY as MEMORIES
from jaxcomp.training.optimizers import (
    OF_OPTIMIZERS,
    OptimizerSetting,
    chained,
    make_links,
)
from jaxcomp.training.optimizers import REGISTRY as OPTIMIZERS
from jaxcomp.training.plan import make_method
from jaxcomp.training.stages import Stage
from jaxcomp.transforms.make import compressor_for
from tests.references import optimizers as references
from tests.tiers import tiers
from tests.training.small import small_config

WORKERS, SIZE, RATE, DECAY = 3, 12, 0.1, 0.01


def gradients(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, WORKERS, SIZE)).astype(np.float32)


@pytest.fixture(autouse=True)
def _promotion():
    """optax counts in integers and multiplies them by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def follow(
    grads: Any, dense_steps: int = 0, decay: float = DECAY, **settings: Any
) -> list[Any]:
    """Parameters after each step of a chain, with dense first steps."""
    config: Any = small_config(**settings)
    setting = OptimizerSetting(optax.constant_schedule(RATE), decay, dense_steps)
    compressor = compressor_for(config.exchange, config.compressor)
    stages = [Stage(compressor, dense) for dense in (True, False)]
    chains = [
        chained(make_links(config, stage, setting, method))
        for stage in stages
        for method in [make_method(config, stage, None, "workers")]
    ]
    params = jnp.asarray(start())
    state = jax.vmap(lambda _: chains[1].init(params))(jnp.arange(WORKERS))
    path = []
    params: Any = jnp.stack([params] * WORKERS)
    for i, grad in enumerate(grads):
        tx = chains[0 if i < dense_steps else 1]
        step = jax.vmap(
            lambda g, s, p, tx=tx: tx.update(g, s, p, key=jax.random.key(0)),
            axis_name="workers",
        )
        update, state = step(jnp.asarray(grad), state, params)
        params = params + update
        path.append(np.asarray(params))
        np.testing.assert_array_equal(path[-1], np.tile(path[-1][:1], (WORKERS, 1)))
    return [p[0] for p in path]


def start():
    return np.linspace(-1, 1, SIZE).astype(np.float32)


def test_dgc_sgd_without_loss_is_sgd_with_momentum_and_weight_decay():
    """Momentum of the gradient in the memory, of weight decay here: together SGD's."""
    for nesterov in (False, True):
        ours = follow(
            gradients(8),
            exchange="exact",
            memory=f"dgc(momentum=0.9, nesterov={nesterov})",
            optimizer=f"dgc_sgd(momentum=0.9, nesterov={nesterov})",
        )
        tx = optax.chain(
            optax.add_decayed_weights(DECAY),
            optax.sgd(RATE, momentum=0.9, nesterov=nesterov),
        )
        params: Any = jnp.asarray(start())
        state = tx.init(params)
        for grad, found in zip(gradients(8), ours, strict=True):
            update, state = tx.update(jnp.asarray(grad.mean(axis=0)), state, params)
            params = params + update
            np.testing.assert_allclose(found, params, rtol=1e-4, atol=1e-5)


ONE_BIT: dict[str, Any] = {
    "memory": "shared_momentum(beta=0.9) | error_feedback",
    "optimizer": "one_bit_adam(b2=0.99)",
    "compressor": "sign",
}


def test_one_bit_adam_is_adam_while_dense():
    ours = follow(gradients(6), dense_steps=6, **ONE_BIT)
    tx = optax.adamw(RATE, b1=0.9, b2=0.99, weight_decay=DECAY)
    params: Any = jnp.asarray(start())
    state = tx.init(params)
    for grad, found in zip(gradients(6), ours, strict=True):
        update, state = tx.update(jnp.asarray(grad.mean(axis=0)), state, params)
        params = params + update
        np.testing.assert_allclose(found, params, rtol=1e-3, atol=1e-4)


def test_one_bit_adam_then_divides_signs_of_momentum_by_a_frozen_variance():
    """The whole method in NumPy, 5 dense steps and 15 compressed ones."""
    ours = follow(gradients(20), dense_steps=5, **ONE_BIT)
    path = references.one_bit_adam(gradients(20), start(), RATE, DECAY, 5, b2=0.99)
    np.testing.assert_allclose(ours, path, rtol=2e-3, atol=2e-3)


def test_one_bit_adam_says_what_it_needs():
    with pytest.raises(SpecError, match="dense_for"):
        follow(gradients(1), **ONE_BIT)
    with pytest.raises(SpecError, match="shared_momentum"):
        follow(gradients(1), 3, optimizer="one_bit_adam", memory="error_feedback")


def test_distributed_lion():
    """Signs of a blend of momentum and gradient; the majority moves the weights."""
    ours = follow(
        gradients(10),
        exchange="majority_vote",
        memory="local_momentum(beta=0.99, blend=0.9)",
        optimizer="sgd(momentum=0)",
    )
    path = references.lion(gradients(10), start(), RATE, DECAY)
    np.testing.assert_allclose(ours, path, rtol=1e-4, atol=1e-5)


def test_signum():
    ours = follow(
        gradients(10),
        exchange="majority_vote",
        memory="local_momentum(beta=0.9)",
        optimizer="sgd(momentum=0)",
    )
    path = references.signum(gradients(10), start(), RATE, DECAY)
    np.testing.assert_allclose(ours, path, rtol=1e-4, atol=1e-5)


def test_ef_signsgd():
    ours = follow(gradients(10), compressor="sign", optimizer="sgd(momentum=0)")
    path = references.ef_signsgd(gradients(10), start(), RATE, DECAY)
    np.testing.assert_allclose(ours, path, rtol=1e-3, atol=1e-4)


def test_adam_of_compressed_gradients_is_adam_of_their_mean():
    settings: dict[str, Any] = {
        "compressor": "none",
        "optimizer": "adam",
        "memory": "none",
    }
    ours = follow(gradients(5), **settings)
    tx = optax.chain(optax.add_decayed_weights(DECAY), optax.adam(RATE))
    params: Any = jnp.asarray(start())
    state = tx.init(params)
    for grad, found in zip(gradients(5), ours, strict=True):
        update, state = tx.update(jnp.asarray(grad.mean(axis=0)), state, params)
        params = params + update
        np.testing.assert_allclose(found, params, rtol=1e-4, atol=1e-5)


# --- Gradient accumulation ------------------------------------------------------------


def test_parts_of_a_batch_cost_one_exchange(tmp_path):
    """It trains, statistics pass from part to part, and the bytes stay the same."""
    runs = [
        training.train_and_evaluate(small_config(accumulate=n), tmp_path / str(n))
        for n in (1, 4)
    ]
    assert runs[0].traffic == runs[1].traffic
    assert np.isfinite(runs[1].test_loss)


def test_accumulated_gradients_are_their_mean():
    """On a linear model, exactly: mean over the parts of means over their examples."""
    from jaxcomp.training.step import _over_micro_batches

    x = jnp.arange(24.0).reshape(12, 2)
    y = jnp.arange(12)

    def of_part(stats, carry, part, key):
        images, labels = part
        means = jnp.mean(images, axis=0), jnp.mean(labels.astype(jnp.float32))
        return stats + 1, carry + labels, means

    stats, carry, (images, labels) = _over_micro_batches(
        of_part, jnp.int32(0), 2 * y, (x, y), jax.random.key(0), 4
    )
    assert int(stats) == 4
    np.testing.assert_array_equal(carry, 3 * y)
    np.testing.assert_allclose(images, x.mean(axis=0))
    assert float(labels) == 5.5


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(ValueError, match="accumulate=3"):
        training.train_and_evaluate(small_config(accumulate=3), tmp_path)


# --- One momentum -------------------------------------------------------------------


def gain(memory, optimizer):
    """Length of a late step, over the rate, where the gradient is always 1."""
    path = follow(
        np.ones((60, WORKERS, SIZE), np.float32),
        dense_steps=40,
        decay=0.0,
        exchange="exact",
        memory=memory,
        optimizer=optimizer,
    )
    return float(np.mean(path[-2] - path[-1])) / RATE


GIVING = ("dgc", "ef21_momentum", "local_momentum", "shared_momentum")
NEWER = ("adamw", "lamb", "lars")  # each is refused as adam or sgd is, or runs as that


@pytest.mark.parametrize(
    ("memory", "optimizer"),
    tiers(
        itertools.product(MEMORIES, OPTIMIZERS),
        lambda pair: pair[0] in GIVING or pair[1] not in NEWER,
    ),
)
def test_a_pair_has_one_momentum_or_is_refused(memory, optimizer):
    """Two of 0.9, one after the other, make a hundred of 1, or are twice as late."""
    reason = ""
    try:
        found = gain(memory, optimizer)
    except SpecError as error:
        reason, found = str(error), None
    if found is None:
        assert optimizer in reason
        assert memory in reason or "gives none" in reason
    else:
        assert found == pytest.approx(1, rel=0.05) or found == pytest.approx(10, 0.05)
        assert not (memory in GIVING and optimizer in OF_OPTIMIZERS)


@pytest.mark.parametrize(
    ("memory", "optimizer", "words"),
    [
        ("dgc", "sgd(momentum=0.9)", ["'dgc'", "sgd(momentum=0)"]),
        ("local_momentum(beta=0.9)", "adam", ["local_momentum", "adam(b1=0)"]),
        ("error_feedback", "dgc_sgd", ["gives none", "dgc(momentum=0.9)"]),
        ("dgc(momentum=0.5)", "dgc_sgd(momentum=0.9)", ["0.5", "0.9", "alike"]),
        ("dgc", "dgc_sgd(nesterov=True)", ["nesterov is False and True"]),
        ("dgc", "one_bit_adam", ["'dgc'", "shared_momentum"]),
    ],
)
def test_a_refused_pair_says_what_goes_together(memory, optimizer, words):
    with pytest.raises(SpecError) as caught:
        follow(gradients(1), 1, exchange="exact", memory=memory, optimizer=optimizer)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("memory", ["dgc(momentum=0)", "local_momentum(beta=0)"])
def test_no_momentum_is_no_momentum(memory):
    follow(gradients(1), exchange="exact", memory=memory, optimizer="sgd")

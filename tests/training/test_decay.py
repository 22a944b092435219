"""Optimisers of whole models and the places of weight decay, against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import SpecError
from jaxcomp.core.errors import UserError
from jaxcomp.training import train_and_evaluate
from jaxcomp.training.optimizers import (
    REGISTRY,
    OptimizerSetting,
    chained,
    check_decay,
    make_links,
)
from jaxcomp.training.plan import gather_workers, make_graph, make_method
from jaxcomp.training.stages import Stage
from jaxcomp.transforms.make import compressor_for
from tests.references import optimizers as references
from tests.training.small import small_config

WORKERS, STEPS, RATE, DECAY = 2, 4, 0.1, 0.05
SHAPES = {"Conv_0": {"bias": (3,), "kernel": (4, 3)}, "Norm_0": {"scale": (3,)}}
RNG = np.random.default_rng(0)


def drawn(*before: int) -> Any:
    def draw(shape: Any) -> Any:
        return RNG.normal(size=(*before, *shape)).astype(np.float32)

    return jax.tree.map(draw, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


WEIGHTS, GRADIENTS = drawn(), drawn(STEPS, WORKERS)


@pytest.fixture(autouse=True)
def _promotion():
    """optax counts in integers and multiplies them by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def follow(**settings: Any) -> list[Any]:
    """Each worker's weights after each step of a config's chain."""
    exact = {"exchange": "exact", "memory": "none", "weight_decay": DECAY}
    config: Any = small_config(**{**exact, **settings})
    setting = OptimizerSetting(
        optax.constant_schedule(RATE),
        config.weight_decay,
        decay=config.decay,
        decay_at=config.decay_at,
    )
    stage = Stage(compressor_for(config.exchange, config.compressor), dense=False)
    method = make_method(config, stage, make_graph(config), "workers")
    tx = chained(make_links(config, stage, setting, method))
    params: Any = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), WEIGHTS)
    state = jax.vmap(tx.init, axis_name="workers")(params)

    @jax.jit
    def run(params: Any, state: Any, grads: Any) -> Any:
        def step(at: Any, grads: Any) -> Any:
            params, state = at
            update = jax.vmap(
                lambda g, s, p: tx.update(g, s, p, key=jax.random.key(0)),
                axis_name="workers",
            )
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        return jax.lax.scan(step, (params, state), grads)[1]

    path = run(params, state, GRADIENTS)
    return [jax.tree.map(lambda x, i=i: np.asarray(x[i]), path) for i in range(STEPS)]


def flat(tree: Any) -> dict[str, Any]:
    return {f"{a}/{b}": x for a, layer in tree.items() for b, x in layer.items()}


MEANS = [
    flat(jax.tree.map(lambda x, i=i: x[i].mean(axis=0), GRADIENTS))
    for i in range(STEPS)
]
EVERYTHING = dict.fromkeys(flat(WEIGHTS), DECAY)
KERNELS = {**dict.fromkeys(EVERYTHING, 0.0), "Conv_0/kernel": DECAY}
NORMS = {**dict.fromkeys(EVERYTHING, 0.0), "Norm_0/scale": DECAY}


def sgd(decay: dict[str, float]) -> list[Any]:
    path, w, v = [], flat(WEIGHTS), dict.fromkeys(EVERYTHING, 0.0)
    for grad in MEANS:
        v = {k: 0.9 * v[k] + grad[k] + decay[k] * w[k] for k in w}
        w = {k: w[k] - RATE * v[k] for k in w}
        path.append(w)
    return path


def assert_follows(path: list[Any], expected: list[Any]) -> None:
    for found, wanted in zip(path, expected, strict=True):
        for name, x in flat(found).items():
            np.testing.assert_allclose(x[0], wanted[name], rtol=2e-4, atol=2e-5)
            np.testing.assert_array_equal(x, np.stack([x[0]] * WORKERS))


SGD = "sgd(momentum=0.9, nesterov=False)"


@pytest.mark.parametrize(
    ("decay", "factors"),
    [("all", EVERYTHING), ("kernels", KERNELS), ("Norm*", NORMS)],
    ids=str,
)
def test_what_decays(decay, factors):
    assert_follows(follow(optimizer=SGD, decay=decay), sgd(factors))


@pytest.mark.parametrize("memory", ["none", "error_feedback"])
def test_without_loss_both_places_are_the_same(memory):
    path = follow(
        optimizer=SGD,
        decay="kernels",
        decay_at="gradient",
        memory=memory,
        exchange="gather",
        compressor="none",
    )
    assert_follows(path, sgd(KERNELS))


@pytest.mark.parametrize("place", ["update", "gradient"])
def test_with_the_memory_of_dgc_it_has_the_same_momentum(place):
    """One beside the memory's, after the exchange; or the memory's own, before it."""
    path = follow(
        optimizer="dgc_sgd(momentum=0.9)",
        memory="dgc(momentum=0.9)",
        decay="kernels",
        decay_at=place,
    )
    assert_follows(path, sgd(KERNELS))


def test_decay_in_the_gradient_is_compressed_with_it():
    """Signs of g + decay w and its mean magnitude, of each worker, with decay 9."""
    signs: dict[str, Any] = {"exchange": "gather", "compressor": "sign"}
    signs |= {"scope": "per_leaf", "memory": "none", "optimizer": "sgd(momentum=0)"}
    path = follow(**signs, decay_at="gradient", weight_decay=9.0)
    w = flat(WEIGHTS)
    for step, found in enumerate(path):
        for name, x in flat(GRADIENTS).items():
            given = x[step] + 9.0 * w[name]
            scale = np.abs(given).mean(axis=tuple(range(1, given.ndim)), keepdims=True)
            w[name] = w[name] - RATE * np.mean(scale * np.sign(given), axis=0)
            np.testing.assert_allclose(
                flat(found)[name][0], w[name], rtol=1e-4, atol=1e-5
            )


def test_clipping_comes_before_decay_in_the_gradient():
    """Each worker's gradient is clipped, and its decay is not: systems 2 and 4."""
    clip = "local(limit=0.5)"
    path = follow(optimizer="sgd(momentum=0)", decay_at="gradient", clip=clip)
    w = flat(WEIGHTS)
    for step, found in enumerate(path):
        grads = {k: x[step] for k, x in flat(GRADIENTS).items()}
        squares = sum(
            np.square(g).reshape(WORKERS, -1).sum(axis=1) for g in grads.values()
        )
        factor = 0.5 / np.sqrt(squares)
        assert np.all(factor < 1)
        for name, g in grads.items():
            mean = np.mean([f * x for f, x in zip(factor, g, strict=True)], axis=0)
            w[name] = w[name] - RATE * (mean + DECAY * w[name])
            np.testing.assert_allclose(
                flat(found)[name][0], w[name], rtol=1e-4, atol=1e-5
            )


GOSSIP: dict[str, Any] = {
    "mixer": "d_psgd",
    "topology": "complete",
    "compressor": "none",
    **dict.fromkeys(("exchange", "memory"), ""),
}


def test_gossip_has_the_same_decay_in_both_places():
    """Each worker decays before it mixes, so there is nothing to tell apart."""
    paths = [
        follow(**GOSSIP, optimizer=SGD, decay="kernels", decay_at=place)
        for place in ("update", "gradient")
    ]
    jax.tree.map(np.testing.assert_array_equal, *paths)
    assert np.ptp(flat(paths[0][-1])["Conv_0/kernel"]) > 0


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        ("adamw", references.adamw),
        ("lamb", references.lamb),
        (
            "lars(trust=0.1)",
            lambda *given: references.lars(*given, trust=0.1),
        ),
    ],
    ids=["adamw", "lamb", "lars"],
)
def test_optimizers_that_keep_decay_apart(optimizer, reference):
    path = follow(optimizer=optimizer, decay="kernels")
    assert_follows(path, reference(MEANS, flat(WEIGHTS), RATE, KERNELS))
    with pytest.raises(SpecError, match="set decay_at to 'update'"):
        follow(optimizer=optimizer, decay_at="gradient")


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_tensors_of_zeros_have_a_ratio_of_one(optimizer):
    zeros = jax.tree.map(np.zeros_like, WEIGHTS)
    link = REGISTRY[optimizer](OptimizerSetting(optax.constant_schedule(RATE), DECAY))
    update = jax.jit(lambda g: link.update(g, link.init(zeros), zeros)[0])
    jax.tree.map(np.testing.assert_array_equal, update(zeros), zeros)
    assert all(np.any(x) for x in jax.tree.leaves(update(WEIGHTS)))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lamb", "lars(trust=0.1)"])
def test_every_mapper_gives_the_same(optimizer, tmp_path):
    runs = [
        train_and_evaluate(
            small_config(optimizer=optimizer, decay="kernels", mapper=mapper),
            tmp_path / mapper,
        )
        for mapper in ("vmap", "pmap", "shard_map")
    ]
    for other in runs[1:]:
        trees = (jax.tree.leaves(run.state.params) for run in (runs[0], other))
        for a, b in zip(*trees, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(UserError, match="'Dens_0' fits no parameter.*Conv_0/bias"):
        check_decay(small_config(decay="Dens_0"), WEIGHTS)
    check_decay(small_config(decay="Dens_0", weight_decay=0.0), WEIGHTS)
    with pytest.raises(UserError, match="not a pattern"):
        check_decay(small_config(decay="ndim=2"), WEIGHTS)
    with pytest.raises(UserError, match="decay_at"):
        gather_workers(small_config(decay_at="gradients"))

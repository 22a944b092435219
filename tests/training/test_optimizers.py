"""Optimisers, weight decay and clips of a config, against their formulas in NumPy."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import SpecError
from jaxcomp.core.errors import UserError
from jaxcomp.memory import REGISTRY as MEMORIES
from jaxcomp.training import optimizers
from jaxcomp.training.optimizers import (
    OF_OPTIMIZERS,
    OptimizerSetting,
    chained,
    check_decay,
    make_clip,
    make_links,
)
from jaxcomp.training.optimizers import REGISTRY as OPTIMIZERS
from jaxcomp.training.plan import gather_workers, make_graph, make_method
from jaxcomp.training.programs import run_traffic
from jaxcomp.training.stages import Stage
from jaxcomp.transforms.make import compressor_for
from tests.references import optimizers as references
from tests.tiers import tiers
from tests.training.small import built, small_config

WORKERS, SIZE, RATE, DECAY = 3, 12, 0.1, 0.05


def gradients(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, WORKERS, SIZE)).astype(np.float32)


@pytest.fixture(autouse=True)
def _promotion():
    """optax counts in integers and multiplies them by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def workers_follow(grads: Any, weights: Any, dense_steps: int, config: Any) -> Any:
    """Each worker's weights after each step of a config's chain."""
    setting = OptimizerSetting(
        optax.constant_schedule(RATE),
        config.weight_decay,
        dense_steps,
        decay=config.decay,
        decay_at=config.decay_at,
    )
    compressor, graph = (
        compressor_for(config.exchange, config.compressor),
        make_graph(config),
    )

    def chain(dense: bool) -> Any:
        stage = Stage(compressor, dense)
        method = make_method(config, stage, graph, "workers")
        return chained(make_links(config, stage, setting, method))

    @functools.cache
    def step_of(dense: bool) -> Any:
        def step(grads: Any, state: Any, params: Any) -> Any:
            update = functools.partial(chain(dense).update, key=jax.random.key(0))
            updates, state = update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return jax.jit(jax.vmap(step, axis_name="workers"))

    leaves = jax.tree.leaves(grads)
    params: Any = jax.tree.map(
        lambda x: jnp.stack([jnp.asarray(x)] * leaves[0].shape[1]), weights
    )
    state = jax.vmap(chain(False).init, axis_name="workers")(params)
    for i in range(len(leaves[0])):
        now = jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), grads)
        params, state = step_of(i < dense_steps)(now, state, params)
        yield jax.tree.map(np.asarray, params)


def follow(
    grads: Any, dense_steps: int = 0, decay: float = DECAY, **settings: Any
) -> list[Any]:
    """Parameters after each step of a chain, with dense first steps."""
    config = small_config(weight_decay=decay, **settings)
    path = list(workers_follow(grads, start(), dense_steps, config))
    for one in path:
        np.testing.assert_array_equal(one, np.tile(one[:1], (WORKERS, 1)))
    return [one[0] for one in path]


def start():
    return np.linspace(-1, 1, SIZE).astype(np.float32)


def assert_is(path: list[Any], tx: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """A path is that of an optax chain of the mean gradients."""
    params: Any = jnp.asarray(start())
    state = tx.init(params)

    @jax.jit
    def step(grad: Any, state: Any, params: Any) -> Any:
        update, state = tx.update(grad, state, params)
        return params + update, state

    for grad, found in zip(gradients(len(path)), path, strict=True):
        params, state = step(jnp.asarray(grad.mean(axis=0)), state, params)
        np.testing.assert_allclose(found, params, rtol=rtol, atol=atol)


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
        assert_is(ours, tx)


ONE_BIT: dict[str, Any] = {
    "memory": "shared_momentum(beta=0.9) | error_feedback",
    "optimizer": "one_bit_adam(b2=0.99)",
    "compressor": "sign",
}


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


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (  # Signs of a blend of momentum and gradient; the majority moves the weights.
            {
                "exchange": "majority_vote",
                "memory": "local_momentum(beta=0.99, blend=0.9)",
            },
            references.lion,
        ),
        (
            {"exchange": "majority_vote", "memory": "local_momentum(beta=0.9)"},
            references.signum,
        ),
        ({"compressor": "sign"}, references.ef_signsgd),
    ],
    ids=["lion", "signum", "ef_signsgd"],
)
def test_methods_of_signs(settings, reference):
    ours = follow(gradients(10), optimizer="sgd(momentum=0)", **settings)
    path = reference(gradients(10), start(), RATE, DECAY)
    np.testing.assert_allclose(ours, path, rtol=1e-3, atol=1e-4)


def test_adam_of_compressed_gradients_is_adam_of_their_mean():
    settings: dict[str, Any] = {
        "compressor": "none",
        "optimizer": "adam",
        "memory": "none",
    }
    ours = follow(gradients(5), **settings)
    tx = optax.chain(optax.add_decayed_weights(DECAY), optax.adam(RATE))
    assert_is(ours, tx)


# --- Gradient accumulation ------------------------------------------------------------


def test_parts_of_a_batch_cost_one_exchange():
    sent = [run_traffic(built(small_config(accumulate=n)))[0] for n in (1, 4)]
    assert sent[0] == sent[1]


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


# --- One momentum ---------------------------------------------------------------------


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
        ("local_momentum(beta=0.9)", "adam", ["local_momentum", "adam(b1=0)"]),
        ("error_feedback", "dgc_sgd", ["gives none", "dgc(momentum=0.9)"]),
        ("dgc(momentum=0.5)", "dgc_sgd(momentum=0.9)", ["0.5", "0.9", "alike"]),
        ("dgc", "one_bit_adam", ["'dgc'", "shared_momentum"]),
    ],
)
def test_a_refused_pair_says_what_goes_together(memory, optimizer, words):
    with pytest.raises(SpecError) as caught:
        follow(gradients(1), 1, exchange="exact", memory=memory, optimizer=optimizer)
    assert all(word in str(caught.value) for word in words)


# --- Weight decay, and optimisers of whole models -------------------------------------

PAIR, STEPS = 2, 4
SHAPES = {"Conv_0": {"bias": (3,), "kernel": (4, 3)}, "Norm_0": {"scale": (3,)}}
RNG = np.random.default_rng(0)


def drawn(*before: int) -> Any:
    def draw(shape: Any) -> Any:
        return RNG.normal(size=(*before, *shape)).astype(np.float32)

    return jax.tree.map(draw, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


WEIGHTS, GRADIENTS = drawn(), drawn(STEPS, PAIR)


def follow_model(**settings: Any) -> list[Any]:
    """Each worker's weights after each step of a config's chain."""
    exact = {"exchange": "exact", "memory": "none", "weight_decay": DECAY}
    config = small_config(**{**exact, **settings})
    return list(workers_follow(GRADIENTS, WEIGHTS, 0, config))


def flat(tree: Any) -> dict[str, Any]:
    return {f"{a}/{b}": x for a, layer in tree.items() for b, x in layer.items()}


MEANS = [
    flat(jax.tree.map(lambda x, i=i: x[i].mean(axis=0), GRADIENTS))
    for i in range(STEPS)
]
EVERYTHING = dict.fromkeys(flat(WEIGHTS), DECAY)
KERNELS = {**dict.fromkeys(EVERYTHING, 0.0), "Conv_0/kernel": DECAY}


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
            np.testing.assert_array_equal(x, np.stack([x[0]] * PAIR))


SGD = "sgd(momentum=0.9, nesterov=False)"


WHOLE = {"exchange": "gather", "compressor": "none", "memory": "error_feedback"}
DGC = {"optimizer": "dgc_sgd(momentum=0.9)", "memory": "dgc(momentum=0.9)"}


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"decay": "all"}, EVERYTHING),
        ({"decay": "kernels"}, KERNELS),
        # Where nothing is lost, both places are the same.
        ({"decay": "Conv*/kernel", "decay_at": "gradient", **WHOLE}, KERNELS),
        # The momentum of decay is beside that of the memory, or in it.
        ({"decay": "kernels", **DGC}, KERNELS),
        ({"decay": "kernels", "decay_at": "gradient", **DGC}, KERNELS),
    ],
    ids=str,
)
def test_what_decays(settings, factors):
    assert_follows(follow_model(**{"optimizer": SGD, **settings}), sgd(factors))


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
    path = follow_model(optimizer=optimizer, decay="kernels")
    assert_follows(path, reference(MEANS, flat(WEIGHTS), RATE, KERNELS))
    with pytest.raises(SpecError, match="set decay_at to 'update'"):
        follow_model(optimizer=optimizer, decay_at="gradient")


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_tensors_of_zeros_have_a_ratio_of_one(optimizer):
    zeros = jax.tree.map(np.zeros_like, WEIGHTS)
    link = OPTIMIZERS[optimizer](OptimizerSetting(optax.constant_schedule(RATE), DECAY))
    update = jax.jit(lambda g: link.update(g, link.init(zeros), zeros)[0])
    jax.tree.map(np.testing.assert_array_equal, update(zeros), zeros)
    assert all(np.any(x) for x in jax.tree.leaves(update(WEIGHTS)))


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(UserError, match="'Dens_0' fits no parameter.*Conv_0/bias"):
        check_decay(small_config(decay="Dens_0"), WEIGHTS)
    check_decay(small_config(decay="Dens_0", weight_decay=0.0), WEIGHTS)
    with pytest.raises(UserError, match="not a pattern"):
        check_decay(small_config(decay="ndim=2"), WEIGHTS)
    with pytest.raises(UserError, match="decay_at"):
        gather_workers(small_config(decay_at="gradients"))


# --- Clips ----------------------------------------------------------------------------

CREW = 4
DRAWN = np.random.default_rng(0)
TREE = {"a": DRAWN.normal(size=(CREW, 3, 2)), "b": 5 * DRAWN.normal(size=(CREW, 4))}


def clipped(spec: str) -> Any:
    [link] = make_clip(spec, "workers")
    tree = jax.tree.map(jnp.float32, TREE)
    update = jax.vmap(lambda x: link.update(x, link.init(x))[0], axis_name="workers")
    return jax.jit(update)(tree)


def norms(x: np.ndarray) -> np.ndarray:
    """Of each worker."""
    return np.linalg.norm(x.reshape(CREW, -1), axis=1)


def times(factors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Each worker's tensors times factors of at most 1."""
    return {
        k: np.minimum(1, factors[k]).reshape(-1, *[1] * (x.ndim - 1)) * x
        for k, x in TREE.items()
    }


def clips_by_hand() -> dict[str, Any]:
    of = {k: norms(x) for k, x in TREE.items()}
    whole = np.sqrt(sum(n**2 for n in of.values()))
    rms = {k: np.sqrt(np.mean(n**2)) for k, n in of.items()}
    alike = np.ones(CREW)
    joint = np.sqrt(np.mean(whole**2))
    return {
        "local(limit=7)": times(dict.fromkeys(TREE, 7 / whole)),
        "scaled(limit=7)": times(dict.fromkeys(TREE, 3.5 / whole)),
        "tensor(limit=3)": times({k: 3 / n for k, n in of.items()}),
        "value(limit=2)": {k: np.clip(x, -2, 2) for k, x in TREE.items()},
        "workers(limit=7)": times(dict.fromkeys(TREE, alike * 7 / joint)),
        "workers(limit=3, each=True)": times({k: alike * 3 / rms[k] for k in TREE}),
        "workers_value": {k: np.clip(x, -rms[k], rms[k]) for k, x in TREE.items()},
    }


@pytest.mark.parametrize("spec", clips_by_hand())
def test_each_form(spec):
    found = clipped(spec)
    for name, tree in clips_by_hand()[spec].items():
        np.testing.assert_allclose(found[name], tree, rtol=1e-5)
    assert any(not np.allclose(found[name], TREE[name]) for name in TREE)


def test_every_form_is_tested_and_none_hides_a_nan():
    for name in optimizers.CLIPS:
        spec = name if name == "workers_value" else f"{name}(limit=1)"
        [link] = make_clip(spec, "workers")
        tree = jnp.array([[1.0, 2.0], [jnp.nan, jnp.nan]])
        found: Any = jax.vmap(
            lambda x, link=link: link.update(x, ())[0], axis_name="workers"
        )(tree)
        assert np.isnan(found[1]).all(), spec


@pytest.mark.parametrize("spec", ["scaled(limit=1)", "workers(limit=1)"])
def test_what_needs_a_mean_is_refused_with_models_of_the_workers_own(spec):
    mixed = {"mixer": "d_psgd", "topology": "ring", "exchange": "", "memory": ""}
    mixed |= {"compressor": "none"}
    with pytest.raises(UserError, match="with 'd_psgd' take 'local'"):
        built(small_config(mapper="vmap", clip=spec, **mixed))
    assert built(small_config(mapper="vmap", clip="local(limit=1)", **mixed))


def test_a_second_clip_in_the_memory_is_refused():
    momentum = {"mapper": "vmap", "optimizer": "sgd(momentum=0)"}
    with pytest.raises(UserError, match="both clip the gradient"):
        built(small_config(clip="value(limit=1)", memory="dgc(clip=2)", **momentum))
    assert built(small_config(clip="value(limit=1)", memory="dgc", **momentum))

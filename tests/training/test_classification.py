"""Images: their labels, batch normalisation, precision, and what a model brings."""

import csv
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxcomp import parallel, training
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import is_per_worker
from jaxcomp.data import Dataset
from jaxcomp.models.tiny import Tiny
from jaxcomp.training.console import score_line
from jaxcomp.training.programs import traced_traffic
from jaxcomp.training.tasks.classification import _hits, _smoothed_cross_entropy
from tests.tiers import tiers
from tests.training.small import built, small_config

MANY = "tests.training.test_classification:many_classes"


def many_classes(classes: int = 12) -> Dataset:
    """Grey squares, whose shade is their class."""
    labels = np.arange(128, dtype=np.int32) % classes
    images = np.zeros((128, 8, 8, 1), np.uint8) + (labels * 20)[:, None, None, None]
    images = images.astype(np.uint8)
    return Dataset("shades", images, labels, images, labels, classes, (0.5,), (0.5,))


def reference(logits: np.ndarray, label: int, smoothing: float) -> float:
    """The cross entropy of whole distributions, slowly."""
    target = np.full(len(logits), smoothing / len(logits))
    target[label] += 1 - smoothing
    likely = np.exp(logits - logits.max())
    return float(-(target * np.log(likely / likely.sum())).sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothed_labels_are_mixed_with_all_classes(smoothing):
    logits = np.random.default_rng(0).normal(size=(6, 7))
    labels = np.array([0, 1, 2, 3, 6, 6])
    found = _smoothed_cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
    pairs = zip(logits, labels, strict=True)
    expected = [reference(row, label, smoothing) for row, label in pairs]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_training_smooths_and_evaluations_do_not():
    plain, smooth = (
        built(small_config(label_smoothing=s, augment="")).task for s in (0, 0.2)
    )
    variables = plain.init(jax.random.key(0))
    batch = tuple(array[:8] for array in plain.train)

    def losses(task):
        trained, _ = task.loss(*variables, {}, batch, jax.random.key(1))
        tested, _ = task.score(variables, {}, batch, jnp.ones(8))
        return float(trained), float(tested.loss)

    assert losses(plain)[0] != losses(smooth)[0]
    assert losses(plain)[1] == losses(smooth)[1]


def test_a_label_may_be_among_the_five_likeliest():
    logits = jnp.array([[5.0, 4, 3, 2, 1, 0, -1]] * 7)
    found = _hits(logits, jnp.arange(7), among=5)
    assert found.tolist() == [1, 1, 1, 1, 1, 0, 0]


def test_sets_of_many_classes_have_a_top_five(tmp_path):
    config = small_config(dataset=MANY, train_for="2 steps")
    training.train_and_evaluate(config, tmp_path)
    with open(tmp_path / "metrics.csv", newline="") as file:
        *_, row = csv.DictReader(file)
    assert 0 <= float(row["test_accuracy"]) <= float(row["test_top5"]) <= 1
    found = training.evaluate(config, tmp_path, "last")
    assert found["test_top5"] == pytest.approx(float(row["test_top5"]), abs=1e-9)
    assert f"top5 {found['test_top5']:.4f}" in score_line(found)


# --- What a model brings beside its layers, where a config asks f ---------------------

HERE = "tests.training.test_classification"
AUGMENT, VIEW = "crop(pad=0, size=8) | flip", "center_crop(size=8, resize=9)"


def mine(num_classes: int) -> nn.Module:
    """A model of somebody's own, for windows of 8 pixels."""
    return Tiny(num_classes, width=2)


mine.input_transform = {"augment": AUGMENT, "eval_view": VIEW}  # pyright: ignore[reportFunctionMemberAccess]


def task_of(**changes: Any) -> Any:
    usual = {"dataset": "digits(size=12)", "model": f"{HERE}:mine", "mapper": "vmap"}
    return built(small_config(**{**usual, **changes})).task


def seen(task: Any) -> tuple[Any, Any]:
    """Loss and score of a few images, with parameters that are always the same."""
    key = jax.random.key(0)
    variables = task.init(key)
    batch = tuple(jnp.asarray(array[:8]) for array in task.train)
    loss, _ = task.loss(*variables, {}, batch, key)
    return loss, task.score(variables, {}, batch, jnp.ones(8))[0].loss


def test_a_model_s_transform_is_used_where_the_config_asks_for_it():
    brought = seen(task_of(augment="model", eval_view="model"))
    said = seen(task_of(augment=AUGMENT, eval_view=VIEW))
    np.testing.assert_array_equal(brought, said)
    others = seen(task_of(augment="", eval_view=""))
    assert others[0] != said[0]
    assert others[1] != said[1]


@pytest.mark.parametrize("key", ["augment", "eval_view"])
@pytest.mark.parametrize("model", ["tiny(width=2)", f"{HERE}:Tiny"])
def test_a_model_that_brings_none_is_an_error_that_names_the_key(key, model):
    with pytest.raises(UserError, match=f"{key} 'model': the model '.*' brings none"):
        task_of(model=model, **{key: "model"})


# --- Where batch normalisation looks, from the config: the same u ---------------------

SYNC = {"exchange": "exact", "memory": "none", "model": "mlp(hidden=[8])"}


def after_two_steps(mapper, spec, **changes):
    config = small_config(**{**SYNC, "mapper": mapper, "batch_norm": spec, **changes})
    setup = built(config)
    workers, task = setup.workers, setup.task
    state = parallel.spread(setup.fresh(), workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(0)),
        workers,
        in_axes=(axes, 0, 0),
        out_axes=(axes, 0),
    )
    for chosen in task.shares(0)[:2]:
        batch = [parallel.place(array[chosen], workers, 0) for array in task.train]
        state, metrics = step(state, *batch)
        assert np.all(parallel.to_host(metrics).applied)
    return parallel.to_host((state.params, state.stats))


@pytest.mark.parametrize("mapper", tiers(["pmap", "shard_map"], "shard_map".__eq__))
@pytest.mark.parametrize("spec", tiers(["sync", "sync(ghost=16)"], "sync".__eq__))
def test_synchronised_statistics_are_the_same_under_every_mapper(mapper, spec):
    params, stats = after_two_steps("vmap", spec)
    assert not is_per_worker(stats)
    for x in jax.tree.leaves(stats):
        assert x.shape == (8,)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        *(after_two_steps(mapper, spec), (params, stats)),
    )


@pytest.mark.parametrize(
    "changes",
    tiers(
        [
            {},
            {"accumulate": 2},
            {"exchange": "gather", "memory": "error_feedback"},
            {"exchange": "gather", "memory": "error_feedback", "overlap": 2},
        ],
        {}.__eq__,
    ),
    ids=str,
)
def test_lanes_of_a_device_share_statistics_with_all_other_workers(changes):
    """Two workers on each of two devices, and four on devices of their own."""
    shared, alone = (
        after_two_steps("shard_map", "sync", workers=4, workers_per_device=k, **changes)
        for k in (2, 1)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        shared,
        alone,
    )


def test_lanes_send_their_statistics_as_one_message_of_a_device():
    """Bytes of a step: a device sends for its two workers what one sends for itself."""
    config = {**SYNC, "mapper": "shard_map", "batch_norm": "sync", "workers": 4}
    shared, alone = (
        built(small_config(**config, workers_per_device=count)) for count in (2, 1)
    )
    sent = [traced_traffic(s, s.stages.at(0)).wire for s in (shared, alone)]
    assert sent[0] == sent[1]


def test_groups_divide_the_part_of_a_batch_that_is_computed_at_once():
    """128 examples over 2 workers in 2 parts: 32."""
    usual = {"mapper": "vmap", "accumulate": 2}
    with pytest.raises(UserError, match="divide the 32 examples .* 8, 16 or 32"):
        built(small_config(batch_norm="local(ghost=64)", **usual))
    assert built(small_config(batch_norm="local(ghost=32)", **usual))


# --- bfloat16 and the precision of products: where they act, and  ---------------------


def loss_of(**changes):
    """The trace of the loss and its gradient, and the setup."""
    setup = built(small_config(mapper="vmap", **changes))
    task = setup.task
    batch = tuple(array[:4] for array in task.train)

    def gradient(key):
        params, stats = task.init(key)
        return jax.grad(lambda p: task.loss(p, stats, {}, batch, key)[0])(params)

    return str(jax.make_jaxpr(gradient)(jax.random.key(0)))


def test_convolutions_and_activations_are_bfloat16():
    lines = loss_of(compute_dtype="bfloat16").splitlines()
    products = [line for line in lines if "conv_general_dilated" in line]
    assert products
    assert all(":bf16[" in line.partition("=")[0] for line in products)
    assert not any(
        ":bf16[" in line.partition("=")[0] for line in loss_of().splitlines()
    )

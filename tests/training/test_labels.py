"""Labels of classification: smoothed in training, and among the likeliest five."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import training
from jaxcomp.data import Dataset
from jaxcomp.training.console import score_line
from jaxcomp.training.tables import epoch_line
from jaxcomp.training.tasks import ACCURACY
from jaxcomp.training.tasks.classification import _hits, _smoothed_cross_entropy
from tests.training.small import built, small_config

MANY = "tests.training.test_labels:many_classes"


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


@pytest.mark.parametrize("spec", [MANY, f"{MANY}(classes=10)"])
def test_what_is_scored_follows_from_the_classes(spec):
    expected = () if "10" in spec else ("top5",)
    assert built(small_config(dataset=spec)).task.scored == expected


def test_a_line_of_the_console_has_it():
    row = {"epoch": 1, "learning_rate": 0.1, "seconds": 1.0, "test_loss": 2.0}
    row |= {"test_accuracy": 0.5, "test_top5": 0.875}
    assert "test 2.0000  50.00%  top 5 87.50%" in epoch_line(row, 2, ACCURACY)

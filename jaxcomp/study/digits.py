"""A small classifier on the digits of scikit-learn: real gradients in seconds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp.base import Array, Tree
from jaxcomp.errors import UserError

__all__ = ["Digits", "digits"]


class Digits(NamedTuple):
    """A model, its loss and its data, for `train` and `gradients`."""

    params: Tree  # at the start
    loss: Callable[[Tree, Any], Array]
    # (steps, workers, examples of each) -> batches
    batches: Callable[[int, int, int], list[Any]]
    accuracy: Callable[[Tree], float]  # params -> part of the test set that is right


def digits(model: str = "resnet8", seed: int = 0) -> Digits:
    """Build a model for the digits. Needs the extra `train`.

    BatchNorm uses the statistics of the batch at hand, in the test as well, so that
    params are the whole model.

    Args:
      model: a name in `jaxcomp.models.REGISTRY`.
      seed: of the params and of the order of the examples.

    Example:
      >>> task = digits("tiny")
      >>> images, labels = task.batches(3, 4, 16)[0]
      >>> images.shape, labels.shape
      ((4, 16, 16, 16, 1), (4, 16))
    """
    from jaxcomp import data, models

    dataset = data.load("digits")
    module = models.make(model, num_classes=dataset.num_classes)

    def normalised(images: np.ndarray) -> np.ndarray:
        pixels = jnp.asarray(images)
        return np.asarray(data.normalize(pixels, dataset.mean, dataset.std))

    images, labels = normalised(dataset.train_images), dataset.train_labels
    tests, answers = normalised(dataset.test_images), dataset.test_labels
    init = jax.jit(lambda key: module.init(key, images[:2], train=False))
    variables = init(jax.random.key(seed))
    stats = variables["batch_stats"]

    def logits(params: Tree, images: Array) -> Array:
        given = {"params": params, "batch_stats": stats}
        return module.apply(given, images, train=True, mutable=["batch_stats"])[0]

    def loss(params: Tree, batch: Any) -> Array:
        images, labels = batch
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits(params, images), labels
        )
        return jnp.mean(losses)

    def batches(steps: int, workers: int, each: int) -> list[Any]:
        size = workers * each
        if size > len(labels):
            raise UserError(f"{size} examples a step are more than {len(labels)}")
        epochs = range(-(-steps // (len(labels) // size)))
        orders = (data.epoch_order(len(labels), seed=seed, epoch=e) for e in epochs)
        shares = [
            share
            for order in orders
            for share in data.batches(order, global_batch=size, workers=workers)
        ]
        return [(images[share], labels[share]) for share in shares[:steps]]

    @jax.jit
    def right(params: Tree) -> Array:
        return jnp.mean(
            jnp.argmax(logits(params, jnp.asarray(tests)), axis=-1) == answers
        )

    return Digits(
        variables["params"], loss, batches, lambda params: float(right(params))
    )

"""Classification of images: a data set, a flax model and their cross entropy."""

import functools
from collections.abc import Callable
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp import data
from jaxcomp.base import Array, Tree
from jaxcomp.errors import UserError
from jaxcomp.models import Statistics, check_group
from jaxcomp.runs.checks import check_values
from jaxcomp.specs import Range
from jaxcomp.tasks.named import COMPUTE_DTYPES, half_precision, named
from jaxcomp.tasks.shares import shares_of
from jaxcomp.tasks.statistics import make as make_statistics
from jaxcomp.tasks.task import Batch, Learnt, Shares, Sums, Task, Variables

__all__ = ["classification", "classifier"]

_FILLED = {"dataset": "digits", "model": "resnet8", "partition": "dealt"}
_KINDS = {
    "batch_norm": str,
    "compute_dtype": COMPUTE_DTYPES,
    "data_dir": str,
    "flip": bool,
    "pad": Annotated[int, Range(least=0)],
}


def classification(config: Any, workers: Any) -> Task:
    """The task of classifying the images of a config's data set with its model.

    Args:
      config: its dataset, model, partition, pad, flip, batch_norm and compute_dtype.
      workers: of the run.
    """
    check_values(config, _KINDS, _FILLED)
    dataset = _dataset(config)
    side = min(dataset.train_images.shape[1:3])
    if config.pad >= side:
        message = f"pad is below the {side} pixels of a side of an image, not"
        raise UserError(f"{message} {config.pad}")
    statistics = make_statistics(config.batch_norm, workers.axis)
    if statistics.group:
        parts = workers.size * config.get("accumulate", 1)
        check_group(statistics.group, config.batch_size // parts)
    colours = {"mean": dataset.mean, "std": dataset.std}
    return classifier(
        _model(config, dataset.num_classes, statistics),
        train=(dataset.train_images, dataset.train_labels),
        test=(dataset.test_images, dataset.test_labels),
        shares=shares_of(config, dataset.train_labels, workers.size),
        augment=functools.partial(
            data.augment, **colours, pad=config.pad, flip=config.flip
        ),
        normalize=functools.partial(data.normalize, **colours),
    )._replace(
        model=config.model,
        data=config.dataset,
        shared_stats=statistics.axis is not None,
    )


def classifier(
    model: Any,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    shares: Shares,
    *,
    augment: Callable[[Array, Array], Array],
    normalize: Callable[[Array], Array],
) -> Task:
    """The task of a model whose variables are `params` and `batch_stats`.

    Args:
      model: flax module, called as model(images, train).
      train: images as they are stored, and labels.
      test: likewise.
      shares: which of `train` each worker sees, by epoch.
      augment: (stored images, key) -> float32 images.
      normalize: stored images -> float32 images.
    """

    def init(key: Array) -> Variables:
        images = jnp.zeros((1, *train[0].shape[1:]), jnp.float32)
        variables = jax.jit(lambda k: model.init(k, images, train=False))(key)
        return Variables(variables["params"], variables.get("batch_stats", {}))

    def loss(
        params: Tree, stats: Tree, carry: Tree, batch: Batch, key: Array
    ) -> tuple[Array, Learnt]:
        images, labels = batch
        augment_key, dropout_key = jax.random.split(key)
        logits, new = model.apply(
            {"params": params, "batch_stats": stats},
            augment(images, augment_key),
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": dropout_key},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        accuracy = jnp.mean(_hits(logits, labels))
        return jnp.mean(losses), Learnt(new.get("batch_stats", {}), carry, accuracy)

    def score(
        variables: Variables, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Sums, Tree]:
        images, labels = batch
        parts = {"params": variables.params, "batch_stats": variables.stats}
        logits = model.apply(parts, normalize(images), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        sums = Sums(
            loss=jnp.sum(losses * weights),
            correct=jnp.sum(_hits(logits, labels) * weights),
            examples=jnp.sum(weights),
        )
        return sums, carry

    return Task(
        model=type(model).__name__,
        data="images",
        train=train,
        test=test,
        shares=shares,
        init=init,
        loss=loss,
        score=score,
    )


def _hits(logits: Array, labels: Array) -> Array:
    return (jnp.argmax(logits, -1) == labels).astype(jnp.float32)


def _dataset(config: Any) -> data.Dataset:
    usual = {"data_dir": config.data_dir or None}
    return named("classification", "dataset", config.dataset, data.Dataset, usual)


def _model(config: Any, classes: int, statistics: Statistics) -> nn.Module:
    usual = {"num_classes": classes, "statistics": statistics, **half_precision(config)}
    return named("classification", "model", config.model, nn.Module, usual)

"""Classification of images: a data set, a flax model and their cross entropy."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp import data, models
from jaxcomp.base import Array, Tree
from jaxcomp.imported import check_kind, importable
from jaxcomp.specs import SpecError, build
from jaxcomp.tasks.deals import deal_of, named_call
from jaxcomp.tasks.task import Batch, Deal, Learnt, Sums, Task, Variables

__all__ = ["classification", "classifier"]


def classification(config: Any, workers: Any) -> Task:
    """Images of a config's data set, sorted into classes by its model.

    Args:
      config: its dataset, model, partition, pad, flip and batch_norm.
      workers: of the run.
    """
    dataset = _dataset(config)
    colours = {"mean": dataset.mean, "std": dataset.std}
    return classifier(
        _model(config, dataset.num_classes, workers.axis),
        train=(dataset.train_images, dataset.train_labels),
        test=(dataset.test_images, dataset.test_labels),
        deal=deal_of(config, dataset.train_labels, workers.size),
        augment=functools.partial(
            data.augment, **colours, pad=config.pad, flip=config.flip
        ),
        normalize=functools.partial(data.normalize, **colours),
    )._replace(
        model=config.model,
        data=config.dataset,
        shared_stats=config.batch_norm == "sync",
    )


def classifier(
    model: Any,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    deal: Deal,
    *,
    augment: Callable[[Array, Array], Array],
    normalize: Callable[[Array], Array],
) -> Task:
    """The task of a model whose variables are `params` and `batch_stats`.

    Args:
      model: flax module, called as model(images, train).
      train: images as they are stored, and labels.
      test: likewise.
      deal: who sees which of `train`.
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
        deal=deal,
        init=init,
        loss=loss,
        score=score,
    )


def _hits(logits: Array, labels: Array) -> Array:
    return (jnp.argmax(logits, -1) == labels).astype(jnp.float32)


def _dataset(config: Any) -> data.Dataset:
    spec, known = importable(config.dataset, data.REGISTRY, "dataset")
    call = named_call(spec, "dataset")
    folder = config.data_dir or None
    if known is data.REGISTRY:
        return data.load(call.name, data_dir=folder, **call.kwargs)
    usual = _taken(known[call.name], data_dir=folder)
    made = build(call._replace(kwargs={**usual, **call.kwargs}), known, "dataset")
    return check_kind(made, data.Dataset, config.dataset, "dataset")


def _model(config: Any, classes: int, axis: str) -> nn.Module:
    spec, known = importable(config.model, models.REGISTRY, "model")
    call = named_call(spec, "model")
    sync = axis if config.batch_norm == "sync" else None
    if known is models.REGISTRY:
        return models.make(call.name, classes, bn_axis=sync, **call.kwargs)
    usual = _taken(known[call.name], num_classes=classes, bn_axis=sync)
    if sync and "bn_axis" not in usual:
        message = (
            "batch_norm 'sync' needs a model with an argument bn_axis, which "
            f"{config.model!r} has not: set batch_norm to 'local'"
        )
        raise SpecError(message)
    made = build(call._replace(kwargs={**usual, **call.kwargs}), known, "model")
    return check_kind(made, nn.Module, config.model, "model")


def _taken(factory: Callable[..., Any], **usual: Any) -> dict[str, Any]:
    """Of the arguments that are usual, those that a factory has."""
    names = inspect.signature(factory).parameters
    return {name: value for name, value in usual.items() if name in names}

"""The key batch_norm of a config: over which examples batch normalisation looks."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomp import data
from jaxcomp.core.specs import Count, build, publish
from jaxcomp.core.types import Array, Tree
from jaxcomp.models import Statistics, check_group
from jaxcomp.runs.keys import check_keys
from jaxcomp.training.tasks.named import half_precision, named, transform_of
from jaxcomp.training.tasks.task import (
    Batch,
    Learnt,
    Shares,
    Sums,
    Task,
    Variables,
    shares_of,
)


def local(axis: Any, ghost: Count | None = None) -> Statistics:
    """Each worker's batch by itself, or groups of `ghost` of its examples."""
    return Statistics(None, ghost or 0)


def sync(axis: Any, ghost: Count | None = None) -> Statistics:
    """The batches of all workers together, or their groups of one number."""
    return Statistics(axis, ghost or 0)


REGISTRY: dict[str, Callable[..., Statistics]] = {"local": local, "sync": sync}
publish(batch_norm=REGISTRY)


def make(spec: str, axis: Any) -> Statistics:
    """The statistics that a config names.

    Args:
      spec: such as "local" or "sync(ghost=32)".
      axis: the mapped axis of the workers.

    Example:
      >>> make("sync(ghost=32)", "workers")
      Statistics(axis='workers', group=32)
    """
    return build(spec, REGISTRY, "batch_norm", axis)


_TOP, _MANY = 5, 10  # sets with more than so many classes have a top 5


def classification(config: Any, workers: Any) -> Task:
    """The task of classifying the images of a config's data set with its model.

    Args:
      config: its dataset, model, partition, augment, image_size, eval_view, batch_norm,
        label_smoothing and compute_dtype.
      workers: of the run.
    """
    check_keys(
        config,
        *("augment", "batch_norm", "compute_dtype", "data_dir", "dataset", "eval_view"),
        *("image_size", "label_smoothing", "model", "partition"),
    )
    usual = {"data_dir": config.data_dir or None, "seed": config.seed}
    task = "classification"
    dataset = named(task, "dataset", config.dataset, data.Dataset, usual)
    statistics = make(config.batch_norm, workers.axis)
    usual = {"num_classes": dataset.num_classes, "statistics": statistics}
    usual |= half_precision(config)
    model = named(task, "model", config.model, nn.Module, usual)
    colours = {"mean": dataset.mean, "std": dataset.std}

    augment = transform_of(config, "augment")
    views = data.make_views(transform_of(config, "eval_view"))

    def sized(config: Any) -> Task:
        if statistics.group:
            parts = workers.size * config.get("accumulate", 1)
            check_group(statistics.group, config.batch_size // parts)
        side = config.image_size
        return classifier(
            model,
            train=(data.of_side(dataset.train_images, side), dataset.train_labels),
            test=(dataset.test_images, dataset.test_labels),
            shares=shares_of(config, dataset.train_labels, workers.size),
            augment=data.make_augment(augment, size=side, **colours),
            normalize=functools.partial(data.normalize, **colours),
            views=views,
            smoothing=config.label_smoothing,
            top=_TOP if dataset.num_classes > _MANY else 0,
        )._replace(
            model=config.model,
            data=config.dataset,
            shared_stats=statistics.axis is not None,
            resized=sized,
        )

    return sized(config)


def classifier(
    model: Any,
    train: tuple[Any, np.ndarray],
    test: tuple[Any, np.ndarray],
    shares: Shares,
    *,
    augment: Callable[[Array, Array], Array],
    normalize: Callable[[Array], Array],
    views: data.Views = lambda images: images[:, None],
    smoothing: float = 0.0,
    top: int = 0,
) -> Task:
    """The task of a model whose variables are `params` and `batch_stats`.

    Args:
      model: flax module, called as model(images, train).
      train: images as they are stored, and labels.
      test: likewise.
      shares: which of `train` each worker sees, by epoch.
      augment: (stored images, key) -> float32 images.
      normalize: stored images -> float32 images.
      views: of each image, over which an evaluation averages the logits.
      smoothing: the share of a training label that all classes have alike.
      top: an evaluation also scores whether the label is among so many of the likeliest
        classes; 0 for no such figure.
    """
    # Here, so that what does not fit the images is an error at once.
    stored, tested = (
        jax.ShapeDtypeStruct((1, *images.shape[1:]), images.dtype)
        for images, _ in (train, test)
    )
    seen = jax.eval_shape(augment, stored, jax.eval_shape(lambda: jax.random.key(0)))
    jax.eval_shape(views, tested)
    scored = (f"top{top}",) if top else ()

    def init(key: Array) -> Variables:
        images = jnp.zeros(seen.shape, seen.dtype)
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
        losses = _smoothed_cross_entropy(logits, labels, smoothing)
        accuracy = jnp.mean(_hits(logits, labels))
        return jnp.mean(losses), Learnt(new.get("batch_stats", {}), carry, accuracy)

    return Task(
        model=type(model).__name__,
        data="images",
        train=train,
        test=test,
        shares=shares,
        init=init,
        loss=loss,
        score=_scorer(model, normalize, views, scored, top),
        scored=scored,
    )


def _scorer(
    model: Any,
    normalize: Callable[[Array], Array],
    views: data.Views,
    scored: tuple[str, ...],
    top: int,
) -> Callable[[Variables, Tree, Batch, Array], tuple[Sums, Tree]]:
    """The `score` of a task; arguments as in `classifier`."""

    def score(
        variables: Variables, carry: Tree, batch: Batch, weights: Array
    ) -> tuple[Sums, Tree]:
        images, labels = batch
        parts = {"params": variables.params, "batch_stats": variables.stats}
        shown = views(images)
        count, each = shown.shape[:2]
        shown = shown.reshape(count * each, *shown.shape[2:])
        logits = model.apply(parts, normalize(shown), train=False)
        logits = jnp.mean(logits.reshape(count, each, -1), axis=1)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        sums = Sums(
            loss=jnp.sum(losses * weights),
            correct=jnp.sum(_hits(logits, labels) * weights),
            examples=jnp.sum(weights),
            figures={
                name: jnp.sum(_hits(logits, labels, top) * weights) for name in scored
            },
        )
        return sums, carry

    return score


def _smoothed_cross_entropy(logits: Array, labels: Array, smoothing: float) -> Array:
    """Cross entropy with 1 - s of each label, and s shared by all classes alike.

    Example:
      >>> logits, labels = jnp.array([[0.0, 2.0]]), jnp.array([1])
      >>> plain, smooth = (_smoothed_cross_entropy(logits, labels, s) for s in (0, 0.5))
      >>> (smooth - plain).tolist()  # half of the mean distance to both logits
      [0.5]
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if not smoothing:
        return losses
    uniform = -jnp.mean(jax.nn.log_softmax(logits), axis=-1)
    return (1 - smoothing) * losses + smoothing * uniform


def _hits(logits: Array, labels: Array, among: int = 1) -> Array:
    """1 where the label is among the classes with the largest logits, else 0."""
    if among == 1:
        found = jnp.argmax(logits, -1) == labels
    else:
        _, classes = jax.lax.top_k(logits, among)
        found = jnp.any(classes == labels[:, None], axis=-1)
    return found.astype(jnp.float32)

"""Dense layers on all pixels: a perceptron of several layers, logistic regression."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics


class Mlp(shared.Model):
    """Dense layers with ReLU on all pixels: relu(bn(dense(x))), and dropout after each.

    All weights are uniform in +-1 / sqrt(fan-in). By default it is `mnist_f1` of
    feifeibear/Communication-Efficient-DNN, five layers of 512.

    Args:
      num_classes: number of logits.
      hidden: numbers of elements of the layers before the last.
      batch_norm: whether each of these has batch normalisation.
      dropout: probability that one of these elements becomes zero. If it is above 0,
        training needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of all products but the last; the logits are float32.
    """

    num_classes: int = 10
    hidden: Sequence[int] = (512,) * 5
    batch_norm: bool = True
    dropout: float = 0.0
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images)
        x = shared.flat(images)
        for features in self.hidden:
            x = nn.Dense(features, dtype=self.dtype, kernel_init=shared.UNIFORM)(x)
            if self.batch_norm:
                x = shared.batch_norm(x, train, self.statistics)
            x = nn.Dropout(self.dropout)(nn.relu(x), deterministic=not train)
        x = x.astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=shared.UNIFORM)(x)


class Logistic(shared.Model):
    """Logistic regression: one dense layer on all pixels, which begins with 0.

    Args:
      num_classes: number of logits.
    """

    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        del train
        shared.check_images(images)
        zeros = nn.initializers.zeros
        x = shared.flat(images).astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=zeros)(x)

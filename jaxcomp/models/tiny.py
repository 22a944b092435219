"""A convolutional network of a few thousand parameters, which compiles quickly."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics


class Tiny(shared.Model):
    """A small convolutional network for tests and demonstrations.

    The layers are three times conv3x3-bn-relu with w, 2w and 2w channels and the
    strides 1, 2 and 2, a global average pool and a dense layer.

    Args:
      num_classes: number of logits.
      width: w, number of channels of the first layer.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> images = jnp.zeros((2, 8, 8, 1))
      >>> key = jax.random.key(0)
      >>> init = jax.eval_shape(lambda k: Tiny().init(k, images, False), key)
      >>> sum(p.size for p in jax.tree.leaves(init["params"]))
      3778
    """

    num_classes: int = 10
    width: int = 8
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images, min_size=8)
        x = images
        for factor, stride in ((1, 1), (2, 2), (2, 2)):
            x = shared.conv(factor * self.width, stride=stride, dtype=self.dtype)(x)
            x = nn.relu(shared.batch_norm(x, train, self.statistics))
        features = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes)(features)

"""LeNet-5: two convolutions and three dense layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared


class LeNet(shared.Model):
    """LeNet-5 in its usual form, with ReLU and max pools.

    The layers are conv5x5(6), pool, conv5x5(16) without padding, pool, and dense layers
    of 120, 84 and `num_classes`. All weights are uniform in +-1 / sqrt(fan-in).

    Args:
      num_classes: number of logits.
      dtype: dtype of all products but the last; the logits are float32.

    References:
      LeCun et al., Gradient-Based Learning Applied to Document Recognition,
      http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf, 1998.
    """

    num_classes: int = 10
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        del train
        # The second convolution leaves 2 pixels of 6, which the pool makes one.
        shared.check_images(images, min_size=12)
        x = images
        for features, pad in ((6, 2), (16, 0)):
            x = shared.conv(
                features, 5, pad=pad, bias=True, init=shared.UNIFORM, dtype=self.dtype
            )(x)
            x = shared.max_pool2(nn.relu(x))
        x = shared.flat(x)
        for features in (120, 84):
            x = nn.relu(
                nn.Dense(features, dtype=self.dtype, kernel_init=shared.UNIFORM)(x)
            )
        x = x.astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=shared.UNIFORM)(x)

"""ResNet9: the residual network of nine layers from the DAWNBench speed records."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models._layers import (
    batch_norm,
    check_images,
    check_positive,
    conv,
    max_pool2,
)

# The last layer has no normalisation before it. This factor keeps its logits small at
# the learning rates that suit the convolutions.
HEAD_SCALE = 0.125


class ConvBNReLU(nn.Module):
    """A convolution with batch normalisation and ReLU: relu(bn(conv3x3(x))).

    Args:
      features: number of output channels.
      bn_axis: mapped axis over which batch statistics are averaged, or None.
      dtype: dtype of the convolution.
    """

    features: int
    bn_axis: str | None = None
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = conv(self.features, dtype=self.dtype)(x)
        return nn.relu(batch_norm(x, train, self.bn_axis))


class ResNet9(nn.Module):
    """ResNet9 as in the DAWNBench records; the original has w = 64.

    The layers are prep(w), layer1(2w)-pool-residual, layer2(4w)-pool,
    layer3(8w)-pool-residual, a global max pool, and a dense layer without bias, whose
    output is multiplied by 0.125. Each layer is conv3x3-bn-relu, and each residual is
    x + layer(layer(x)). The original has a 4x4 max pool at the end, which is the same
    as the global one for images of 32x32.

    Args:
      num_classes: number of logits.
      width: w, number of channels of the first layer.
      bn_axis: mapped axis over which batch statistics are averaged, or None.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> model = ResNet9()
      >>> images = jnp.zeros((2, 32, 32, 3))
      >>> key = jax.random.key(0)
      >>> init = jax.eval_shape(lambda k: model.init(k, images, False), key)
      >>> sum(p.size for p in jax.tree.leaves(init["params"]))
      6573120

    References:
      Page, How to Train Your ResNet, https://github.com/davidcpage/cifar10-fast, 2018.
    """

    num_classes: int = 10
    width: int = 64
    bn_axis: str | None = None
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(num_classes=self.num_classes, width=self.width)

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        # The three 2x2 pools need images of at least 8x8.
        check_images(images, min_size=8)

        def layer(x: jax.Array, factor: int, name: str) -> jax.Array:
            features = factor * self.width
            return ConvBNReLU(features, self.bn_axis, self.dtype, name=name)(x, train)

        def residual(x: jax.Array, factor: int, name: str) -> jax.Array:
            return x + layer(layer(x, factor, f"{name}_1"), factor, f"{name}_2")

        x = layer(images, 1, "prep")
        x = max_pool2(layer(x, 2, "layer1"))
        x = residual(x, 2, "residual1")
        x = max_pool2(layer(x, 4, "layer2"))
        x = max_pool2(layer(x, 8, "layer3"))
        x = residual(x, 8, "residual3")
        features = jnp.max(x, axis=(1, 2)).astype(jnp.float32)
        logits = nn.Dense(self.num_classes, use_bias=False)(features)
        return HEAD_SCALE * logits

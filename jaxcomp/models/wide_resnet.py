"""Wide residual networks: fewer layers with more channels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics


class PreActivationBlock(nn.Module):
    """A residual block that normalises before each convolution.

    out = shortcut + conv(dropout(relu(bn(conv(a))))) with a = relu(bn(x)). The shortcut
    is x, or conv1x1(a) if the shape changes.

    Args:
      features: number of output channels.
      stride: step of the first convolution and of the shortcut.
      dropout: probability that a value between the convolutions becomes zero.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions.
    """

    features: int
    stride: int = 1
    dropout: float = 0.0
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        a = nn.relu(shared.batch_norm(x, train, self.statistics))
        if self.stride != 1 or x.shape[-1] != self.features:
            # The projection has the input a, because x is not normalised.
            x = shared.conv(
                self.features, 1, self.stride, dtype=self.dtype, name="projection"
            )(a)
        y = shared.conv(self.features, stride=self.stride, dtype=self.dtype)(a)
        y = nn.relu(shared.batch_norm(y, train, self.statistics))
        y = nn.Dropout(self.dropout)(y, deterministic=not train)
        return x + shared.conv(self.features, dtype=self.dtype)(y)


class WideResNet(shared.Model):
    """Wide ResNet WRN-d-k with pre-activation blocks.

    The layers are conv3x3(16), n = (d-4)/6 blocks each with 16k, 32k and 64k channels,
    bn-relu, a global average pool and a dense layer. The first blocks with 32k and with
    64k channels have stride 2.

    Args:
      num_classes: number of logits.
      depth: d, number of weighted layers, 6n+4.
      width: k, factor on the number of channels of the blocks.
      dropout: probability that a value between the convolutions of a block becomes
        zero. If it is above 0, training needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> model = WideResNet(depth=16, width=4)
      >>> images = jnp.zeros((2, 32, 32, 3))
      >>> key = jax.random.key(0)
      >>> init = jax.eval_shape(lambda k: model.init(k, images, False), key)
      >>> sum(p.size for p in jax.tree.leaves(init["params"]))
      2748890

    References:
      Zagoruyko and Komodakis, Wide Residual Networks, arXiv:1605.07146, 2016.
    """

    num_classes: int = 10
    depth: int = 28
    width: int = 10
    dropout: float = 0.0
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        shared.blocks(self.depth, offset=4)  # refuses a depth that is not valid

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images)
        x = shared.conv(16, dtype=self.dtype)(images)
        for block in shared.blocks(self.depth, offset=4, width=self.width):
            x = PreActivationBlock(
                **block,
                dropout=self.dropout,
                statistics=self.statistics,
                dtype=self.dtype,
            )(x, train)
        x = nn.relu(shared.batch_norm(x, train, self.statistics))
        features = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes)(features)

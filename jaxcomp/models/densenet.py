"""DenseNet: each layer reads the outputs of all layers of its block before it."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.core.errors import UserError
from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics

# Layers of the blocks on ImageNet, by the number of all weighted layers.
IMAGENET = {
    121: (6, 12, 24, 16),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}
BOTTLENECK = 4  # channels of a bottleneck's first convolution, in growths


class DenseLayer(nn.Module):
    """A layer that adds channels to its input: [x, f(x)].

    f(x) = dropout(conv3x3(relu(bn(x)))); of a bottleneck it is
    dropout(conv3x3(relu(bn(conv1x1(relu(bn(x))))))).

    Args:
      growth: number of channels that are added.
      bottleneck: whether a 1x1 convolution to 4 growths comes first.
      dropout: probability that a value of f(x) becomes zero.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions.
    """

    growth: int
    bottleneck: bool = True
    dropout: float = 0.0
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y = nn.relu(shared.batch_norm(x, train, self.statistics))
        if self.bottleneck:
            y = shared.conv(BOTTLENECK * self.growth, 1, dtype=self.dtype)(y)
            y = nn.relu(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(self.growth, dtype=self.dtype)(y)
        y = nn.Dropout(self.dropout)(y, deterministic=not train)
        return jnp.concatenate([x.astype(y.dtype), y], axis=-1)


class DenseNet(shared.Model):
    """DenseNet or DenseNet-BC, for CIFAR or, with a stem, for ImageNet.

    The layers are conv3x3, blocks of dense layers with a transition between them,
    bn-relu, a global average pool and a dense layer. A transition is
    bn-relu-conv1x1-mean2x2. The stem is conv7x7 with stride 2, bn, relu and a 3x3 max
    pool with stride 2, instead of the first conv3x3. BC means bottlenecks, twice the
    growth of channels at first, and transitions that halve the channels. Convolutions
    have He initialisation.

    Args:
      num_classes: number of logits.
      blocks: numbers of layers of the blocks; () for three equal ones of `depth`.
      depth: number of weighted layers: 6n+4 with bottlenecks, 3n+4 without.
      growth: number of channels that a layer adds.
      bc: bottlenecks and compression.
      stem: of ImageNet; its first convolution has twice the growth of channels too.
      dropout: probability that a new value becomes zero. If it is above 0, training
        needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> DenseNet(depth=100).layers()
      (16, 16, 16)

    References:
      Huang et al., Densely Connected Convolutional Networks, arXiv:1608.06993, 2016.
    """

    num_classes: int = 10
    blocks: Sequence[int] = ()
    depth: int = 100
    growth: int = 12
    bc: bool = True
    stem: bool = False
    dropout: float = 0.0
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers()  # refuses a depth that is not valid

    def layers(self) -> tuple[int, ...]:
        """The number of dense layers of each block."""
        if self.blocks:
            return tuple(self.blocks)
        each = 6 if self.bc else 3
        count, rest = divmod(self.depth - 4, each)
        if rest or count < 1:
            below = max(1, count) * each + 4
            raise UserError(
                f"depth={self.depth} is not {each}n+4 with n >= 1; nearest valid "
                f"depths: {below}, {below + each}"
            )
        return (count,) * 3

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images, min_size=32 if self.stem else 4)

        def norm(x: jax.Array) -> jax.Array:
            return nn.relu(shared.batch_norm(x, train, self.statistics))

        features = 2 * self.growth if self.bc else 16
        if self.stem:
            x = shared.conv(features, 7, 2, dtype=self.dtype)(images)
            x = shared.max_pool(norm(x), 3, 2, pad=1)
        else:
            x = shared.conv(features, dtype=self.dtype)(images)
        for block, count in enumerate(self.layers(), start=1):
            if block > 1:
                features = x.shape[-1] // 2 if self.bc else x.shape[-1]
                x = shared.conv(features, 1, dtype=self.dtype)(norm(x))
                x = shared.mean_pool2(x)
            for number in range(1, count + 1):
                x = DenseLayer(
                    self.growth,
                    self.bc,
                    self.dropout,
                    self.statistics,
                    self.dtype,
                    name=f"block{block}_layer{number}",
                )(x, train)
        features = jnp.mean(norm(x).astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes)(features)

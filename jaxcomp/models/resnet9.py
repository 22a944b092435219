"""ResNet9: the residual network of nine layers from the DAWNBench speed records."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.core.errors import UserError
from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics

# The last layer has no normalisation before it. This factor keeps its logits small at
# the learning rates that suit the convolutions.
HEAD_SCALE = 0.125


class ConvBNReLU(nn.Module):
    """A convolution with batch normalisation and ReLU: relu(bn(conv3x3(x))).

    Args:
      features: number of output channels.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolution.
    """

    features: int
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = shared.conv(self.features, dtype=self.dtype)(x)
        return nn.relu(shared.batch_norm(x, train, self.statistics))


class ResNet9(shared.Model):
    """ResNet9 as in the DAWNBench records; the original has w = 64.

    The layers are prep(w), layer1(2w)-pool-residual, layer2(4w)-pool,
    layer3(8w)-pool-residual, a global max pool, and a dense layer without bias, whose
    output is multiplied by 0.125. Each layer is conv3x3-bn-relu, and each residual is
    x + layer(layer(x)). The original has a 4x4 max pool at the end, which is the same
    as the global one for images of 32x32. Convolutions have He initialisation; the
    original's are uniform in +-1 / sqrt(fan-in).

    The options are those of sands-lab/layer-wise-aaai20.

    Args:
      num_classes: number of logits.
      width: w, number of channels of the first layer.
      channels: of prep and of the three layers, instead of w, 2w, 4w and 8w.
      residuals: the layers of 1 to 3 that end in a residual.
      extras: the layers of 1 to 3 that end in one more conv3x3-bn-relu.
      scale: factor on the logits.
      statistics: over which examples batch normalisation computes them.
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
    channels: Sequence[int] | None = None
    residuals: Sequence[int] = (1, 3)
    extras: Sequence[int] = ()
    scale: float = HEAD_SCALE
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels is not None and len(self.channels) != 4:
            raise UserError(f"channels={self.channels} are not four numbers")
        for name in ("residuals", "extras"):
            layers = getattr(self, name)
            if not set(layers) <= {1, 2, 3} or len(set(layers)) < len(layers):
                message = "is not valid; each of 1, 2 and 3 may be in it once"
                raise UserError(f"{name}={tuple(layers)} {message}")

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        # The three 2x2 pools need images of at least 8x8.
        shared.check_images(images, min_size=8)

        def layer(x: jax.Array, features: int, name: str) -> jax.Array:
            how = self.statistics, self.dtype
            return ConvBNReLU(features, *how, name=name)(x, train)

        widths = self.channels or [factor * self.width for factor in (1, 2, 4, 8)]
        x = layer(images, widths[0], "prep")
        for number, features in enumerate(widths[1:], start=1):
            x = shared.max_pool2(layer(x, features, f"layer{number}"))
            if number in self.residuals:
                y = layer(x, features, f"residual{number}_1")
                x = x + layer(y, features, f"residual{number}_2")
            if number in self.extras:
                x = layer(x, features, f"extra{number}")
        features = jnp.max(x, axis=(1, 2)).astype(jnp.float32)
        return self.scale * nn.Dense(self.num_classes, use_bias=False)(features)

"""ResNet-20, ResNet-32 and so on: the residual networks of He et al. for CIFAR-10."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Initializer, Statistics

SHORTCUTS = ("A", "B")


def shortcut_a(x: jax.Array, features: int, stride: int) -> jax.Array:
    """x subsampled in space, with channels of zeros added on both sides.

    out[:, i, j] = [0, x[:, stride * i, stride * j], 0]

    Args:
      x: input [batch, height, width, channels].
      features: number of output channels, at least as many as `x` has.
      stride: step in both directions.

    Example:
      >>> shortcut_a(jnp.ones((1, 2, 2, 2)), features=4, stride=2).tolist()
      [[[[0.0, 1.0, 1.0, 0.0]]]]
    """
    extra = features - x.shape[-1]
    before = extra // 2
    x = x[:, ::stride, ::stride, :]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (before, extra - before)))


class BasicBlock(nn.Module):
    """A residual block of two 3x3 convolutions.

    out = relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))

    Args:
      features: number of output channels.
      stride: step of the first convolution and of the shortcut.
      shortcut: "A" or "B"; it is used if the shape changes.
      zero_scale: begin with scale 0 in the last bn: the branch begins as nothing.
      kernel_init: draws the weights.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions.
    """

    features: int
    stride: int = 1
    shortcut: str = "A"
    zero_scale: bool = False
    kernel_init: Initializer = shared.HE
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        how = {"init": self.kernel_init, "dtype": self.dtype}
        y = shared.conv(self.features, stride=self.stride, **how)(x)
        y = nn.relu(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(self.features, **how)(y)
        y = shared.batch_norm(y, train, self.statistics, zero_scale=self.zero_scale)
        if self.stride != 1 or x.shape[-1] != self.features:
            x = self._shortcut(x, train, how)
        return nn.relu(x + y)

    def _shortcut(self, x: jax.Array, train: bool, how: dict[str, Any]) -> jax.Array:
        if self.shortcut == "A":
            return shortcut_a(x, self.features, self.stride)
        x = shared.conv(self.features, 1, self.stride, name="projection", **how)(x)
        return shared.batch_norm(x, train, self.statistics, name="projection_bn")


class ResNetCifar(shared.Model):
    """A ResNet for CIFAR of depth 6n+2.

    The layers are conv3x3(16), n basic blocks each with 16, 32 and 64 channels, a
    global average pool and a dense layer. The first blocks with 32 and with 64 channels
    have stride 2.

    Args:
      num_classes: number of logits.
      depth: number of weighted layers, 6n+2.
      shortcut: "A" adds channels of zeros and has no parameters; "B" is a 1x1
        convolution with batch normalisation.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> model = ResNetCifar(depth=20)
      >>> images = jnp.zeros((2, 32, 32, 3))
      >>> key = jax.random.key(0)
      >>> init = jax.eval_shape(lambda k: model.init(k, images, False), key)
      >>> sum(p.size for p in jax.tree.leaves(init["params"]))
      269722

    References:
      He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385, 2015.
    """

    # That of convNet.pytorch. The optimiser is the config's: a momentum may be there.
    regime = (
        (
            "0 epochs",
            {"learning_rate": 0.1, "schedule": "constant", "weight_decay": 1e-4},
        ),
        ("81 epochs", {"learning_rate": 0.01}),
        ("122 epochs", {"learning_rate": 0.001, "weight_decay": 0.0}),
        ("164 epochs", {"learning_rate": 0.0001}),
    )

    num_classes: int = 10
    depth: int = 20
    shortcut: str = "A"
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        shared.blocks(self.depth, offset=2)  # refuses a depth that is not valid
        shared.check_choice(SHORTCUTS, shortcut=self.shortcut)

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images)
        x = shared.conv(16, dtype=self.dtype)(images)
        x = nn.relu(shared.batch_norm(x, train, self.statistics))
        for block in shared.blocks(self.depth, offset=2):
            x = BasicBlock(
                **block,
                shortcut=self.shortcut,
                statistics=self.statistics,
                dtype=self.dtype,
            )(x, train)
        features = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes)(features)

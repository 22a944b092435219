"""MobileNetV2: inverted residuals with depthwise convolutions."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.core.errors import UserError
from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics

# Of each stage: factor of the expansion, channels, blocks, stride on ImageNet.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST = 32, 1280  # channels before and after the stages


def rounded(channels: float) -> int:
    """The nearest multiple of 8, at least 8, and not below 90 % of the channels.

    Example:
      >>> rounded(24 * 0.5), rounded(16 * 0.35), rounded(10)
      (16, 8, 16)
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


class InvertedResidual(nn.Module):
    """Expand, convolve each channel by itself, and project.

    out = x + bn(conv1x1(relu6(bn(depthwise3x3(relu6(bn(conv1x1(x))))))))

    There is no x if the shape changes, and no first conv1x1 if the factor is 1.

    Args:
      features: number of output channels.
      factor: of the channels in between to those of the input.
      stride: step of the depthwise convolution.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions.
    """

    features: int
    factor: int
    stride: int = 1
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        wide = self.factor * x.shape[-1]
        how = {"init": shared.HE_OUT, "dtype": self.dtype}
        y = x
        if self.factor > 1:
            y = shared.conv(wide, 1, **how)(y)
            y = nn.relu6(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(wide, 3, self.stride, groups=wide, **how)(y)
        y = nn.relu6(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(self.features, 1, **how)(y)
        y = shared.batch_norm(y, train, self.statistics)
        return x + y if x.shape == y.shape else y


class MobileNetV2(shared.Model):
    """MobileNetV2 with the strides of CIFAR or of ImageNet.

    The layers are conv3x3(32)-bn-relu6, stages of inverted residuals, conv1x1(1280)-
    bn-relu6, a global average pool, dropout and a dense layer. On ImageNet the first
    convolution and four stages have stride 2; on CIFAR three stages have. Weights are
    He-normal by the fan-out, those of the dense layer normal with standard deviation
    0.01.

    Args:
      num_classes: number of logits.
      imagenet: the strides of ImageNet; else the first two are 1.
      width: factor on all channels, which are rounded to multiples of 8.
      stages: of each the factor, channels, number of blocks and stride.
      dropout: probability that a value before the dense layer becomes zero. If it is
        above 0, training needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    References:
      Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks,
      arXiv:1801.04381, 2018.
    """

    num_classes: int = 10
    imagenet: bool = False
    width: float = 1.0
    stages: Sequence[Sequence[int]] = STAGES
    dropout: float = 0.2
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        for stage in self.stages:
            if len(stage) != 4:
                message = "is not the expansion, channels, blocks and stride of a stage"
                raise UserError(f"stages: {tuple(stage)} {message}")
            factor, channels, blocks, stride = stage
            shared.check_positive(factor=factor, channels=channels)
            shared.check_positive(blocks=blocks, stride=stride)

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images)
        how = {"init": shared.HE_OUT, "dtype": self.dtype}
        stem = shared.conv(
            rounded(self.width * STEM), 3, 2 if self.imagenet else 1, **how
        )
        x = nn.relu6(shared.batch_norm(stem(images), train, self.statistics))
        for stage, (factor, channels, count, stride) in enumerate(self.stages):
            first = stride if self.imagenet or stage > 1 else 1
            for block in range(count):
                x = InvertedResidual(
                    rounded(self.width * channels),
                    factor,
                    1 if block else first,
                    self.statistics,
                    self.dtype,
                    name=f"stage{stage + 1}_block{block + 1}",
                )(x, train)
        x = shared.conv(rounded(max(1.0, self.width) * LAST), 1, **how)(x)
        x = nn.relu6(shared.batch_norm(x, train, self.statistics))
        features = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        features = nn.Dropout(self.dropout)(features, deterministic=not train)
        return nn.Dense(self.num_classes, kernel_init=shared.NARROW)(features)

"""Wide residual networks: fewer layers with more channels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.errors import UserError
from jaxcomp.models._layers import (
    batch_norm,
    blocks_per_stage,
    check_images,
    check_positive,
    conv,
)


class PreActivationBlock(nn.Module):
    """Residual block that normalises before each convolution.

    a = relu(bn(x)); out = shortcut + conv(dropout(relu(bn(conv(a)))))
    with shortcut = x, or conv1x1(a) where the shape changes.

    Args:
      features: number of output channels.
      stride: step of the first convolution and of the shortcut.
      dropout: probability of zeroing a value between the convolutions.
      bn_axis: mapped axis of the batch statistics, or None.
      dtype: type the convolutions compute in.
    """

    features: int
    stride: int = 1
    dropout: float = 0.0
    bn_axis: str | None = None
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        a = nn.relu(batch_norm(x, train, self.bn_axis))
        if self.stride != 1 or x.shape[-1] != self.features:
            # The projection reads the activation: a linear map of the raw sum
            # would skip the normalisation that the whole design is about.
            x = conv(
                self.features, 1, self.stride, dtype=self.dtype, name="projection"
            )(a)
        y = conv(self.features, stride=self.stride, dtype=self.dtype)(a)
        y = nn.relu(batch_norm(y, train, self.bn_axis))
        y = nn.Dropout(self.dropout)(y, deterministic=not train)
        return x + conv(self.features, dtype=self.dtype)(y)


class WideResNet(nn.Module):
    """Wide ResNet WRN-d-k with pre-activation blocks.

    conv3x3(16), then n = (d-4)/6 blocks each with 16k, 32k and 64k channels
    (stride 2 on entering the last two stages), bn-relu, global average pool,
    dense.

    Args:
      num_classes: number of logits.
      depth: d, number of weighted layers, 6n+4.
      width: k, factor on the channels of the three stages.
      dropout: probability of zeroing a value between the convolutions of a
        block. Above 0, training needs the random key `rngs={"dropout": key}`.
      bn_axis: mapped axis of the batch statistics, or None.
      dtype: type the convolutions compute in; the logits are float32.

    >>> model = WideResNet(depth=16, width=4)
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> init = jax.eval_shape(lambda k: model.init(k, images, False), jax.random.key(0))
    >>> sum(p.size for p in jax.tree.leaves(init["params"]))
    2748890

    S. Zagoruyko and N. Komodakis, "Wide Residual Networks",
    https://arxiv.org/abs/1605.07146, 2016.
    """

    num_classes: int = 10
    depth: int = 28
    width: int = 10
    dropout: float = 0.0
    bn_axis: str | None = None
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(num_classes=self.num_classes, width=self.width)
        blocks_per_stage(self.depth, offset=4)
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(
                f"dropout={self.dropout} is not valid; it must be in [0, 1)"
            )

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        check_images(images)
        x = conv(16, dtype=self.dtype)(images)
        for stage, features in enumerate((16, 32, 64)):
            for block in range(blocks_per_stage(self.depth, offset=4)):
                x = PreActivationBlock(
                    features * self.width,
                    stride=2 if stage > 0 and block == 0 else 1,
                    dropout=self.dropout,
                    bn_axis=self.bn_axis,
                    dtype=self.dtype,
                    name=f"stage{stage + 1}_block{block + 1}",
                )(x, train)
        x = nn.relu(batch_norm(x, train, self.bn_axis))
        return nn.Dense(self.num_classes)(jnp.mean(x, axis=(1, 2)))

"""AlexNet: with batch normalisation or three dense layers for CIFAR, for ImageNet."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics

HEAD_SCALE = 0.125  # as that of ResNet9, with which it was trained
# Channels of the five convolutions in widths of the first, and which have a pool.
FEATURES = (1, 3, 6, 4, 4)
POOLED = (True, True, False, False, True)


class AlexNet(shared.Model):
    """AlexNet with batch normalisation for CIFAR, as in sands-lab/layer-wise-aaai20.

    The layers are conv3x3-bn-relu with w, 3w, 6w, 4w and 4w channels, the first with
    stride 2; a 2x2 max pool after the first two and the last; a global max pool; and a
    dense layer without bias, whose output is multiplied by 0.125. Convolutions have He
    initialisation, the original's are uniform in +-1 / sqrt(fan-in).

    Args:
      num_classes: number of logits.
      width: w; the original has 64.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    References:
      Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural
      Networks, NeurIPS, 2012.
    """

    num_classes: int = 10
    width: int = 64
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        # A stride of 2 and three pools.
        shared.check_images(images, min_size=15)
        x = images
        for i, factor in enumerate(FEATURES):
            stride = 1 if i else 2
            x = shared.conv(factor * self.width, stride=stride, dtype=self.dtype)(x)
            x = nn.relu(shared.batch_norm(x, train, self.statistics))
            x = shared.max_pool2(x) if POOLED[i] else x
        features = jnp.max(x, axis=(1, 2)).astype(jnp.float32)
        return HEAD_SCALE * nn.Dense(self.num_classes, use_bias=False)(features)


class AlexNetDense(shared.Model):
    """AlexNet with three dense layers and dropout for CIFAR, without normalisation.

    The layers are those of `AlexNet` as conv3x3-relu with bias, and then twice
    relu(dense(dropout(x))), and a dense layer. The dense layers see 2x2 parts of each
    channel, which is what the pools leave of 32x32 pixels. All weights are uniform in
    +-1 / sqrt(fan-in).

    Args:
      num_classes: number of logits.
      width: channels of the first convolution.
      hidden: elements of each of the two dense layers before the last.
      dropout: probability that an element before these layers becomes zero. If it is
        above 0, training needs the random key `rngs={"dropout": key}`.
      dtype: dtype of all products but the last; the logits are float32.
    """

    num_classes: int = 10
    width: int = 64
    hidden: int = 4096
    dropout: float = 0.5
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images, min_size=15)
        x = images
        for i, factor in enumerate(FEATURES):
            stride = 1 if i else 2
            layer = shared.conv(
                factor * self.width,
                stride=stride,
                bias=True,
                init=shared.UNIFORM,
                dtype=self.dtype,
            )
            x = nn.relu(layer(x))
            x = shared.max_pool2(x) if POOLED[i] else x
        x = shared.flat(shared.mean_pool(x, 2))
        for _ in range(2):
            x = nn.Dropout(self.dropout)(x, deterministic=not train)
            layer = nn.Dense(self.hidden, dtype=self.dtype, kernel_init=shared.UNIFORM)
            x = nn.relu(layer(x))
        x = x.astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=shared.UNIFORM)(x)


class AlexNetImageNet(shared.Model):
    """AlexNet of the one-weird-trick paper, with batch normalisation, for ImageNet.

    The convolutions are 11x11 with stride 4, 5x5, and three of 3x3, each as
    conv-pool-relu-bn, where those of `AlexNet` have a pool, here 3x3 with stride 2. The
    first has bn-relu. Then twice dropout(relu(bn(dense(x)))), and a dense layer. Layers
    with bn have no bias. Weights are He-normal by the fan-out, those of dense layers
    uniform in +-1 / sqrt(fan-in).

    Args:
      num_classes: number of logits.
      width: channels of the first convolution.
      hidden: elements of each of the two dense layers before the last.
      dropout: probability that one of their elements becomes zero. If it is above 0,
        training needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of all products but the last; the logits are float32.

    References:
      Krizhevsky, One Weird Trick for Parallelizing Convolutional Neural Networks,
      arXiv:1404.5997, 2014.
      Hoffer, https://github.com/eladhoffer/convNet.pytorch (AlexNetOWT_BN).
    """

    # That of convNet.pytorch, of pictures whose shorter side has 256 pixels.
    input_transform = {  # noqa: RUF012
        "augment": "crop(pad=0, size=224) | flip",
        "eval_view": "center_crop(size=224, resize=256)",
    }

    num_classes: int = 1000
    width: int = 64
    hidden: int = 4096
    dropout: float = 0.5
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images, min_size=63)

        def norm(x: jax.Array) -> jax.Array:
            return shared.batch_norm(x, train, self.statistics)

        x = images
        kernels = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
        for i, (kernel, stride, pad) in enumerate(kernels):
            features = FEATURES[i] * self.width
            layer = shared.conv(
                features, kernel, stride, pad=pad, init=shared.HE_OUT, dtype=self.dtype
            )
            x = layer(x)
            x = shared.max_pool(x, 3, 2) if POOLED[i] else x
            x = norm(nn.relu(x)) if i else nn.relu(norm(x))
        x = shared.flat(shared.mean_pool(x, 6))
        how = {"dtype": self.dtype, "kernel_init": shared.UNIFORM}
        for _ in range(2):
            layer = nn.Dense(self.hidden, use_bias=False, **how)
            x = nn.relu(norm(layer(x)))
            x = nn.Dropout(self.dropout)(x, deterministic=not train)
        x = x.astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=shared.UNIFORM)(x)

"""ResNet-18, 34, 50, 101 and 152: the residual networks of He et al. for ImageNet."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Initializer, Statistics
from jaxcomp.models.resnet_cifar import BasicBlock

# Blocks of the four stages. 10 is a small one for tests, with one block in each.
STAGES = {
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
EXPANSION = 4  # of the channels, in the last convolution of a bottleneck


class Bottleneck(nn.Module):
    """A residual block of a 1x1, a 3x3 and a 1x1 convolution.

    out = relu(shortcut(x) + bn(conv1x1(a))) with a = relu(bn(conv3x3(b))) and
    b = relu(bn(conv1x1(x))). The shortcut is x, or bn(conv1x1(x)) if the shape changes.
    The 3x3 convolution has the stride, as in torchvision; the paper's first has it.

    Args:
      features: channels of the first two convolutions; the last has 4 times as many.
      stride: step of the 3x3 convolution and of the shortcut.
      zero_scale: begin with scale 0 in the last bn: the branch begins as nothing.
      kernel_init: draws the weights.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions.
    """

    features: int
    stride: int = 1
    zero_scale: bool = False
    kernel_init: Initializer = shared.HE_OUT
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        wide = EXPANSION * self.features
        how = {"init": self.kernel_init, "dtype": self.dtype}
        y = shared.conv(self.features, 1, **how)(x)
        y = nn.relu(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(self.features, 3, self.stride, **how)(y)
        y = nn.relu(shared.batch_norm(y, train, self.statistics))
        y = shared.conv(wide, 1, **how)(y)
        y = shared.batch_norm(y, train, self.statistics, zero_scale=self.zero_scale)
        if self.stride != 1 or x.shape[-1] != wide:
            x = shared.conv(wide, 1, self.stride, name="projection", **how)(x)
            x = shared.batch_norm(x, train, self.statistics, name="projection_bn")
        return nn.relu(x + y)


class ResNetImageNet(shared.Model):
    """A ResNet for ImageNet, with basic blocks below 50 layers and bottlenecks above.

    The layers are conv7x7(w)-bn-relu with stride 2, a 3x3 max pool with stride 2, four
    stages of blocks with w, 2w, 4w and 8w channels, a global average pool and a dense
    layer. The first block of the last three stages has stride 2. Weights are He-normal
    by the fan-out, those of the dense layer normal with standard deviation 0.01.

    Args:
      num_classes: number of logits.
      depth: number of weighted layers: 10, 18, 34, 50, 101 or 152.
      width: w; the original has 64.
      zero_scale: begin with scale 0 in the last bn of each block, so that each block
        begins as its shortcut.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of the convolutions; the logits are float32.

    Example:
      >>> images, key = jnp.zeros((2, 224, 224, 3)), jax.random.key(0)
      >>> start = lambda k: ResNetImageNet(depth=50).init(k, images, False)
      >>> init = jax.eval_shape(start, key)
      >>> sum(p.size for p in jax.tree.leaves(init["params"]))
      25557032

    References:
      He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385, 2015.
      Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, 2017.
    """

    num_classes: int = 1000
    depth: int = 50
    width: int = 64
    zero_scale: bool = True
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        shared.check_choice(STAGES, depth=self.depth)

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images)
        make: Any = Bottleneck
        if self.depth < 50:
            make = functools.partial(
                BasicBlock, shortcut="B", kernel_init=shared.HE_OUT
            )
        x = shared.conv(self.width, 7, 2, init=shared.HE_OUT, dtype=self.dtype)(images)
        x = shared.max_pool(
            nn.relu(shared.batch_norm(x, train, self.statistics)), 3, 2, pad=1
        )
        for stage, count in enumerate(STAGES[self.depth]):
            for block in range(count):
                x = make(
                    self.width * 2**stage,
                    stride=2 if stage and not block else 1,
                    zero_scale=self.zero_scale,
                    statistics=self.statistics,
                    dtype=self.dtype,
                    name=f"stage{stage + 1}_block{block + 1}",
                )(x, train)
        features = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes, kernel_init=shared.NARROW)(features)

"""VGG: stacks of 3x3 convolutions, with a head for CIFAR or the one of ImageNet."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcomp.models import _layers as shared
from jaxcomp.models._layers import LOCAL, Statistics

# Convolutions of the five stages, of w, 2w, 4w, 8w and 8w channels.
STAGES = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
FEATURES = (1, 2, 4, 8, 8)


class Vgg(shared.Model):
    """VGG of 11, 13, 16 or 19 layers (configurations A, B, D and E of the paper).

    The layers are five stages of conv3x3-bn-relu, each followed by a 2x2 max pool, and
    a head. With `hidden=0` the head is the mean over all places and one dense layer, as
    usual for CIFAR. Else it is that of ImageNet: the means of 7x7 parts, twice
    dropout(relu(dense(x))), and a dense layer. Weights are He-normal by the fan-out,
    those of dense layers normal with standard deviation 0.01, biases 0. Convolutions
    have a bias before a bn too, as in torchvision.

    Args:
      num_classes: number of logits.
      depth: number of layers with weights, of the head for ImageNet.
      width: w; the original has 64.
      batch_norm: whether each convolution has batch normalisation.
      hidden: elements of the two dense layers of the head; 0 for the head for CIFAR.
      dropout: probability that one of these becomes zero. If it is above 0 and there
        are any, training needs the random key `rngs={"dropout": key}`.
      statistics: over which examples batch normalisation computes them.
      dtype: dtype of all products but the last; the logits are float32.

    References:
      Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image
      Recognition, arXiv:1409.1556, 2014.
    """

    num_classes: int = 10
    depth: int = 16
    width: int = 64
    batch_norm: bool = True
    hidden: int = 0
    dropout: float = 0.5
    statistics: Statistics = LOCAL
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        shared.check_choice(STAGES, depth=self.depth)

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        shared.check_images(images, min_size=8)
        x = images
        for stage, count in enumerate(STAGES[self.depth]):
            for _ in range(count):
                layer = shared.conv(
                    FEATURES[stage] * self.width,
                    bias=True,
                    init=shared.HE_OUT,
                    dtype=self.dtype,
                )
                x = layer(x)
                x = (
                    shared.batch_norm(x, train, self.statistics)
                    if self.batch_norm
                    else x
                )
                x = nn.relu(x)
            # Images of less than 32 pixels are down to one before the last stage.
            x = shared.max_pool2(x) if min(x.shape[1:3]) > 1 else x
        x = shared.flat(shared.mean_pool(x, 7 if self.hidden else 1))
        for _ in range(2 if self.hidden else 0):
            layer = nn.Dense(self.hidden, dtype=self.dtype, kernel_init=shared.NARROW)
            x = nn.Dropout(self.dropout)(nn.relu(layer(x)), deterministic=not train)
        x = x.astype(jnp.float32)
        return nn.Dense(self.num_classes, kernel_init=shared.NARROW)(x)

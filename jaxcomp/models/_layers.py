"""Layers that all models share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

Initializer = nn.initializers.Initializer

# He initialisation, by the fan-in as in the paper, by the fan-out as in torchvision.
HE = nn.initializers.he_normal()
HE_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
# Uniform in +-1 / sqrt(fan-in): what PyTorch gives to a layer of which a model says
# nothing. PyTorch draws biases likewise; they are 0 here.
UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
NARROW = nn.initializers.normal(0.01)


def conv(
    features: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    pad: int | None = None,
    groups: int = 1,
    bias: bool = False,
    init: Initializer = HE,
    dtype: DTypeLike = jnp.float32,
    name: str | None = None,
) -> nn.Conv:
    """A convolution, by default without bias and with He initialisation.

    The weights are drawn with variance 2 / (kernel * kernel * in_channels).

    Args:
      features: number of output channels.
      kernel: side of the square kernel.
      stride: step in both directions.
      pad: zeros on each side; by default half of an odd kernel.
      groups: parts into which the channels are divided, each with its own weights.
      bias: whether a bias is added, which begins with 0.
      init: draws the weights.
      dtype: dtype of the computation; the weights are float32.
      name: name of the submodule; flax picks one if it is None.

    References:
      He et al., Delving Deep into Rectifiers, arXiv:1502.01852, 2015.
    """
    # At stride 2, "SAME" pads an even image on one side only. Padding both sides
    # aligns the windows as PyTorch does.
    zeros = kernel // 2 if pad is None else pad
    both = (zeros, zeros)
    return nn.Conv(
        features,
        (kernel, kernel),
        (stride, stride),
        padding=(both, both),
        feature_group_count=groups,
        use_bias=bias,
        dtype=dtype,
        kernel_init=init,
        name=name,
    )


def max_pool2(x: jax.Array) -> jax.Array:
    """The maximum of each 2x2 square; an odd last row or column is dropped.

    out[:, i, j] = max over a, b in {0, 1} of x[:, 2i + a, 2j + b]

    Args:
      x: input [batch, height, width, channels].

    Example:
      >>> max_pool2(jnp.arange(6.0).reshape(1, 2, 3, 1)).tolist()
      [[[[4.0]]]]
    """
    # On a CPU the gradient of `nn.max_pool` takes ten times as long. Equal maxima share
    # the gradient here; after a ReLU they are zeros, which receive none in either way.
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def mean_pool2(x: jax.Array) -> jax.Array:
    """The mean of each 2x2 square; an odd last row or column is dropped.

    Args:
      x: input [batch, height, width, channels].

    Example:
      >>> mean_pool2(jnp.arange(6.0).reshape(1, 2, 3, 1)).tolist()
      [[[[2.0]]]]
    """
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = x[:, 0:height:2] + x[:, 1:height:2]
    return (x[:, :, 0:width:2] + x[:, :, 1:width:2]) / 4


def max_pool(x: jax.Array, window: int, stride: int, pad: int = 0) -> jax.Array:
    """The maximum of each window; a window may overlap the next one.

    Args:
      x: input [batch, height, width, channels].
      window: side of the square window.
      stride: step in both directions.
      pad: places on each side that are below any number.

    Example:
      >>> max_pool(jnp.arange(9.0).reshape(1, 3, 3, 1), 3, 2, pad=1).reshape(-1)
      Array([4., 5., 7., 8.], dtype=float32)
    """
    edges = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    x = jnp.pad(x, edges, constant_values=-jnp.inf) if pad else x
    return nn.max_pool(x, (window, window), (stride, stride))


def mean_pool(x: jax.Array, side: int = 1) -> jax.Array:
    """The means of side x side parts of an image, which are as equal as they can be.

    Part i of n rows has those from floor(i n / side) to ceil((i + 1) n / side). A small
    image is so repeated: parts may overlap, and one pixel may be all of a part.

    Args:
      x: input [batch, height, width, channels].
      side: number of parts in each direction.

    Returns:
      float32 [batch, side, side, channels].

    Example:
      >>> mean_pool(jnp.arange(4.0).reshape(1, 2, 2, 1)).tolist()
      [[[[1.5]]]]
      >>> mean_pool(jnp.ones((1, 1, 1, 1)), side=2).tolist()
      [[[[1.0], [1.0]], [[1.0], [1.0]]]]
    """

    def weights(size: int) -> np.ndarray:
        place, part = np.arange(size)[None], np.arange(side)[:, None]
        first, last = part * size // side, -(-(part + 1) * size // side)
        inside = (first <= place) & (place < last)
        return (inside / inside.sum(axis=1, keepdims=True)).astype(np.float32)

    x = x.astype(jnp.float32)
    if side == 1:
        return jnp.mean(x, axis=(1, 2), keepdims=True)
    down, across = weights(x.shape[1]), weights(x.shape[2])
    return jnp.einsum("ah,bw,nhwc->nabc", down, across, x)


def flat(x: jax.Array) -> jax.Array:
    """All numbers of each example as one vector, [batch, numbers]."""
    return x.reshape(x.shape[0], -1)
